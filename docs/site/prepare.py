"""Writes what Sphinx reads: the pages of this repository, a page for each public package, and `llms.txt`
with `llms-full.txt`.

    python docs/site/prepare.py build/docs-source

The pages are copied, because README, CHANGELOG, CONTRIBUTING and SECURITY are above the folder of the others, and
because a link to a file of the code leads nowhere on the site. The contents come from `docs/index.md`: each heading
there above a table of pages is a part of the site, and the links below it are its pages.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
ABOVE = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
ROW = re.compile(r"^\| (?!term )([^|]+?) \|", re.MULTILINE)
EMPHASIS = re.compile(r"(?<![*\w])(\*{1,2})([a-z][a-z -]+)\1(?![*\w])")
PART = re.compile(r"^## (.+)$", re.MULTILINE)
SHOWN = frozenset({".md", ".svg", ".png", ".html"})

# The packages and modules that have a page of the reference. The page describes the names in `__all__`; of a module
# without it, the classes and functions that the module defines.
PACKAGES = (
    "retry_topic",
    "retry_topic.policy",
    "retry_topic.message",
    "retry_topic.message.headers",
    "retry_topic.consumer",
    "retry_topic.dead_letters",
    "retry_topic.history",
    "retry_topic.testing",
    "retry_topic.tracing",
    "retry_topic.brokers.conformance",
    "retry_topic.brokers.memory",
    "retry_topic.brokers.kafka",
    "retry_topic.brokers.redis_streams",
    "retry_topic.spark",
    "wheel_sched_celery",
    "wheel_sched_celery.beat.entries",
    "wheel_sched_apscheduler",
    "wheel_sched.store",
    "wheel_sched.store.embedded",
    "wheel_sched.store.fair_shares",
    "wheel_sched.dispatcher",
    "wheel_sched.timers",
    "wheel_sched.purgatory",
    "wheel_sched.wheel",
    "wheel_sched.observability",
    "wheel_sched.observability.prometheus",
    "wheel_sched.dashboard",
    "wheel_sched.testing",
    "wheel_sched.testing.virtual_loop",
    "wheel_sched.errors",
    "wheel_sched.extensions",
)


def on_the_site(path: Path) -> Path:
    """The place of a file of this repository, relative to the root of the site."""
    return Path(path.name.lower()) if path.parent == ROOT else path.relative_to(DOCS)


def is_shown(path: Path) -> bool:
    if path.name in ABOVE and path.parent == ROOT:
        return True
    return path.is_relative_to(DOCS) and path.suffix in SHOWN and path.is_file()


def with_links(text: str, page: Path) -> str:
    """The text of a page, with its links as they must be on the site. A link to a file without a page becomes text."""
    here = on_the_site(page).parent

    def moved(match: re.Match[str]) -> str:
        mark, label, target, anchor = match.groups()
        path = Path(os.path.normpath(page.parent / target))
        if not is_shown(path):
            return label
        if path.suffix == ".html":  # not a page of Sphinx
            return f'<a href="{os.path.relpath(on_the_site(path), here)}">{label}</a>'
        return f"{mark}[{label}]({os.path.relpath(on_the_site(path), here)}{anchor or ''})"

    return LINK.sub(moved, text)


def anchor_of(row: str) -> str:
    return "term-" + re.sub(r"[^a-z0-9]+", "-", row.lower()).strip("-")


def terms(glossary: str) -> dict[str, str]:
    """The anchor of each term of the glossary that has one meaning. A row may have several terms: "alarm, timer"."""
    found: dict[str, list[str]] = {}
    for row in ROW.findall(glossary):
        for name in re.sub(r"\(.*?\)", "", row).split(","):
            found.setdefault(name.strip(), []).append(anchor_of(row))
    return {name: anchors[0] for name, anchors in found.items() if len(anchors) == 1}


def with_anchors(glossary: str) -> str:
    return ROW.sub(lambda row: f'| <a id="{anchor_of(row[1])}"></a>{row[1]} |', glossary)


def with_terms(text: str, page: Path, anchors: dict[str, str]) -> str:
    """The text of a page, in which each term that the page emphasises leads to the glossary."""
    up = os.path.relpath(".", on_the_site(page).parent)

    def linked(match: re.Match[str]) -> str:
        anchor = anchors.get(match[2])
        return f'<a href="{up}/glossary.html#{anchor}">{match[0]}</a>' if anchor else match[0]

    return EMPHASIS.sub(linked, text)


def contents(index: str) -> list[tuple[str, list[str]]]:
    """The parts of the site: the caption and the pages of each, without their suffix."""
    _, *parts = PART.split(index)
    found = []
    for caption, text in zip(parts[::2], parts[1::2], strict=True):
        pages = [match[3].removesuffix(".md") for match in LINK.finditer(text) if match[3].endswith(".md")]
        if "\n| page |" in text:
            found.append((caption, list(dict.fromkeys(pages))))
    return found


def toctrees(parts: list[tuple[str, list[str]]]) -> str:
    blocks = []
    for caption, pages in parts:
        more = [f"api/{name}" for name in PACKAGES] if caption == "Reference" else []
        lines = "\n".join([*pages, *more])
        blocks.append(f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{lines}\n```\n")
    return "".join(blocks)


def api_page(name: str) -> str:
    """The page of a package, in reStructuredText."""
    return f"``{name}``\n{'=' * (len(name) + 4)}\n\n.. automodule:: {name}\n"


def summary(text: str) -> tuple[str, str]:
    """The heading of a page and its first sentence."""
    heading = re.search(r"^# (.+)$", text, re.MULTILINE)
    paragraph = re.search(r"^(?!```)[^#|\s<-].+?(?=\n\n)", text, re.MULTILINE | re.DOTALL)
    words = " ".join(paragraph[0].split()) if paragraph else ""
    sentence = re.split(r"(?<=[.?!])\s", re.sub(r"\[([^\]]*)\]\([^)]*\)|\*\*", r"\1", words))[0]
    return heading[1] if heading else "", sentence


def llms(parts: list[tuple[str, list[str]]], source: Path) -> str:
    """`llms.txt`: what the project is, then a line for each page, as https://llmstxt.org describes it."""
    lines = [
        "# wheel-sched",
        "",
        "> One durable, wheel-driven scheduling core for Python: retry topics, Celery ETA tasks,",
    ]
    lines += ["> APScheduler jobs and timers. Nothing is released early."]
    for caption, pages in parts:
        lines += ["", f"## {caption}", ""]
        for page in pages:
            title, sentence = summary((source / f"{page}.md").read_text("utf-8"))
            lines.append(f"- [{title}]({page}.html): {sentence}")
    lines += ["", "## Packages", "", *(f"- [{name}](api/{name}.html)" for name in PACKAGES)]
    return "\n".join(lines) + "\n"


def llms_full(parts: list[tuple[str, list[str]]], source: Path) -> str:
    """`llms-full.txt`: the text of every page, in the order of the contents. The first line of each names the page."""
    pages = list(dict.fromkeys(page for _, pages in parts for page in pages))
    return "\n".join(f"<!-- {page}.html -->\n\n{(source / f'{page}.md').read_text('utf-8')}" for page in pages)


def main(target: Path) -> None:
    glossary = DOCS / "glossary.md"
    anchors = terms(glossary.read_text("utf-8"))
    shutil.rmtree(target, ignore_errors=True)
    pages = [ROOT / name for name in ABOVE] + sorted(DOCS.rglob("*.md"))
    for page in pages:
        place = target / on_the_site(page)
        place.parent.mkdir(parents=True, exist_ok=True)
        text = with_links(page.read_text("utf-8"), page)
        text = with_anchors(text) if page == glossary else with_terms(text, page, anchors)
        place.write_text(text, "utf-8")
    shutil.copytree(DOCS / "images", target / "images")
    index = target / "index.md"
    text = index.read_text("utf-8")
    parts = contents(text)
    index.write_text(text + toctrees(parts), "utf-8")
    extra = target / "extra"  # html_extra_path: copied as it is
    (extra / "site").mkdir(parents=True)
    for name in ("herd.html", "herd.js"):
        shutil.copy(DOCS / "site" / name, extra / "site")
    (extra / "llms.txt").write_text(llms(parts, target), "utf-8")
    (extra / "llms-full.txt").write_text(llms_full(parts, target), "utf-8")
    (target / "api").mkdir()
    for name in PACKAGES:
        (target / "api" / f"{name}.rst").write_text(api_page(name), "utf-8")
    shutil.copy(DOCS / "site" / "conf.py", target)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

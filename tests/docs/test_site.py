"""The site: its contents name every page, its links lead somewhere, and its simulator computes as Python does."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from retry_topic.policy import Decorrelated, Exponential
from retry_topic.policy.delays import DEFAULT_CAP_MS, MAX_FACTOR

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "docs" / "site"
HERD = SITE / "herd.js"
NODE = shutil.which("node")


def loaded(name: str) -> ModuleType:
    """A program of docs/site. That folder is not a package."""
    spec = importlib.util.spec_from_file_location(f"docs_site_{name}", SITE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


prepare, check = loaded("prepare"), loaded("check")


class Ends:
    """A random generator that draws one end of each range, and remembers the range."""

    def __init__(self) -> None:
        self.seen: tuple[int, int] = (0, 0)

    def randint(self, low: int, high: int) -> int:
        self.seen = (low, high)
        return high


def test_the_contents_name_every_page() -> None:
    """The contents name each page once, and no page that does not exist."""
    named = [page for _, pages in prepare.contents((ROOT / "docs" / "index.md").read_text("utf-8")) for page in pages]
    named = [page.removeprefix("../") for page in named]
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(f"{page}.md" for page in named) == sorted(pages - {"index.md"} | set(prepare.ABOVE))


def test_links_become_those_of_the_site() -> None:
    """A link to a page keeps its anchor; a link to a file of the code becomes text; an address stays."""
    page = ROOT / "docs" / "internals" / "figures.md"
    text = "[a](../guarantees.md#in-short) [b](../../README.md) [c](../../retry_topic/service.py) [d](https://x.y/z.md)"
    assert prepare.with_links(text, page) == "[a](../guarantees.md#in-short) [b](../readme.md) c [d](https://x.y/z.md)"


def test_emphasised_terms_lead_to_the_glossary() -> None:
    """Each term of the glossary has one anchor, and a page that emphasises the term links to it."""
    glossary = (ROOT / "docs" / "glossary.md").read_text("utf-8")
    anchors = prepare.terms(glossary)
    written = re.findall(r'<a id="([^"]+)">', prepare.with_anchors(glossary))
    assert len(written) == len(set(written))
    assert set(anchors.values()) <= set(written)
    assert "epoch" not in anchors  # the glossary has three meanings of it
    page = ROOT / "docs" / "spec" / "README.md"
    text = prepare.with_terms("a **lease** and a *stranger*", page, anchors)
    assert text == 'a <a href="../glossary.html#term-lease">**lease**</a> and a *stranger*'


def imported(page: Path) -> set[tuple[str, str]]:
    """The module and the name of each import from this project in the Python blocks of a page."""
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    nodes = [node for block in blocks for node in ast.walk(ast.parse(block)) if isinstance(node, ast.ImportFrom)]
    roots = {name.partition(".")[0] for name in prepare.PACKAGES}
    ours = [node for node in nodes if node.module and node.module.partition(".")[0] in roots]
    return {(str(node.module), alias.name) for node in ours for alias in node.names}


def test_the_reference_describes_what_the_pages_import() -> None:
    """Each name that an example imports is on a page of the reference. The pages on Spark also import whole jobs."""
    modules = [importlib.import_module(name) for name in prepare.PACKAGES]
    public = {id(getattr(module, name)) for module in modules for name in getattr(module, "__all__", ())}
    pages = [path for path in (ROOT / "docs").rglob("*.md") if not path.name.startswith("spark-")]
    names = {one for page in [ROOT / "README.md", *pages] for one in imported(page)}
    assert len(names) > 70
    elsewhere = [(place, name) for place, name in sorted(names) if place not in prepare.PACKAGES]
    values = {f"{place}.{name}": getattr(importlib.import_module(place), name) for place, name in elsewhere}
    assert [one for one, value in values.items() if id(value) not in public and not isinstance(value, ModuleType)] == []


def test_llms_txt_names_every_page_and_package_and_the_full_text_has_each_page_once(tmp_path: Path) -> None:
    """Each page has its heading, a link, and a sentence that says what it is about."""
    source = tmp_path / "source"
    prepare.main(source)
    index = (source / "extra" / "llms.txt").read_text("utf-8")
    lines = re.findall(r"^- \[(.+)\]\((?!api/)(.+)\.html\): (.*)$", index, re.MULTILINE)
    pages = {path.relative_to(source).with_suffix("").as_posix() for path in source.rglob("*.md")} - {"index"}
    assert {page for _, page, _ in lines} == pages
    assert [page for title, page, sentence in lines if not title or len(sentence.split()) < 4] == []
    assert re.findall(r"\(api/(.+)\.html\)$", index, re.MULTILINE) == list(prepare.PACKAGES)
    full = (source / "extra" / "llms-full.txt").read_text("utf-8")
    assert sorted(re.findall(r"^<!-- (.+)\.html -->$", full, re.MULTILINE)) == sorted(pages)
    assert all((source / f"{page}.md").read_text("utf-8") in full for page in pages)


def test_what_a_page_loads_from_elsewhere_and_dead_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "style.css").write_text("@import url(//fonts.example/a.css); p {background: url(own.png)}", "utf-8")
    (tmp_path / "index.html").write_text(
        '<p id="here"><script src="https://cdn.example/x.js"></script><img src="own.png">'
        '<a href="https://example.org">out</a><a href="#here">ok</a><a href="#gone">no</a><a href="gone.html">no</a>',
        "utf-8",
    )
    assert list(check.foreign(tmp_path)) == [
        "index.html: https://cdn.example/x.js",
        "style.css: //fonts.example/a.css",
    ]
    assert list(check.broken(tmp_path)) == ["index.html: #gone", "index.html: gone.html"]


def test_the_simulator_is_small_and_needs_no_network() -> None:
    page, script = (SITE / "herd.html").read_text("utf-8"), HERD.read_text("utf-8")
    assert script.startswith('"use strict";')
    assert len(page) + len(script) < 12_000
    assert re.findall(r"(?:src|href|url\()=?[\"']?(?:https?:)?//", page) == []
    assert re.findall(r"\b(?:fetch|import|XMLHttpRequest|eval)\b", script) == []


def test_the_simulator_has_the_constants_of_the_policy() -> None:
    found = re.search(
        r"LIMITS = \{ maxFactor: (\d+), maxDelayMs: ([\d_]+), baseMs: ([\d_]+), factor: (\d+) \}",
        HERD.read_text("utf-8"),
    )
    assert found is not None
    ours = Exponential()
    assert [int(number) for number in found.groups()] == [MAX_FACTOR, DEFAULT_CAP_MS, ours.base_ms, ours.factor]


def grid() -> list[dict[str, Any]]:
    return [
        {"baseMs": base, "factor": factor, "capMs": cap, "jitter": jitter, "attempt": attempt, "previousMs": previous}
        for base in (1, 37, 1_000, 60_000)
        for factor in (1, 1.1, 1.5, 2, 3.7)
        for cap in (60_000, 3_600_000)
        for jitter in ("none", "full", "equal", "decorrelated")
        for attempt in (1, 2, 3, 7, 20, 1_000)
        for previous in (None, 4_321)
    ]


def range_in_python(one: dict[str, Any]) -> list[int]:
    ends = Ends()
    if one["jitter"] == "decorrelated":
        Decorrelated(one["baseMs"], one["capMs"]).draw(one["attempt"], one["previousMs"], ends)  # type: ignore[arg-type]
        return list(ends.seen)
    delay = Exponential(one["baseMs"], one["factor"], one["capMs"], one["jitter"])
    drawn = delay.draw(one["attempt"], one["previousMs"], ends)  # type: ignore[arg-type]
    return [drawn.low_ms, drawn.high_ms]


@pytest.mark.skipif(NODE is None, reason="needs node, to run the simulator's formula")
def test_the_simulator_draws_from_the_ranges_of_the_policy() -> None:
    """For a grid of policies and attempts, JavaScript and Python draw a delay from the same range."""
    program = (
        f"const herd = require({json.dumps(str(HERD))});"
        "const cases = JSON.parse(require('fs').readFileSync(0, 'utf8'));"
        "console.log(JSON.stringify(cases.map((one) => herd.range(one, one.attempt, one.previousMs))));"
    )
    cases = grid()
    done = subprocess.run([str(NODE), "-e", program], input=json.dumps(cases), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [range_in_python(one) for one in cases]

"""The targets of links, the `make` targets and the files that the pages name exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\((?!https?://|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")
SHELL_BLOCK = re.compile(r"^```(?:sh|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
TREE_PATH = re.compile(r"^(?:tests|docs|examples|benchmarks|\.ci)/[\w./-]*$")
# the programs that a page may tell a reader to start; think twice before you add one
PROGRAMS = frozenset(
    {"celery", "git", "cd", "make", "pip", "bash", "wheel-sched", ".venv/bin/python", ".venv/bin/pytest"}
)

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


def anchors(page: Path) -> set[str]:
    """The anchors of headings, as code hosts make them: lower case, without punctuation, hyphens for spaces."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> Iterator[str]:
    for target, anchor in LINK.findall(page.read_text("utf-8")):
        path = (page.parent / target) if target else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            yield f"{target}#{anchor}" if anchor else target


def commands(page: Path) -> list[list[str]]:
    lines = (line for block in SHELL_BLOCK.findall(page.read_text("utf-8")) for line in block.splitlines())
    parts = (shlex.split(part, comments=True) for line in lines for part in line.removeprefix("$ ").split("&&"))
    return [words for words in parts if words]


def unknown_commands(page: Path, targets: set[str]) -> Iterator[str]:
    for program, *arguments in commands(page):
        goals = {word for word in arguments if re.fullmatch(r"[a-z-]+", word)} if program == "make" else set()
        missing = [word for word in arguments if TREE_PATH.match(word) and not (ROOT / word).exists()]
        if program not in PROGRAMS or not goals <= targets or missing:
            yield " ".join([program, *arguments])


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


@every_page
def test_links_within_the_project_lead_somewhere(page: Path) -> None:
    """Every relative link names an existing file, and every anchor names a heading of the file."""
    assert list(broken_links(page)) == []


@every_page
def test_shell_blocks_name_commands_that_exist(page: Path) -> None:
    """Each command of a shell block has a known program, and its `make` targets and files exist."""
    assert list(unknown_commands(page, make_targets())) == []


def test_the_readme_gives_the_two_commands() -> None:
    """The README has the commands `make demo` and `make test`."""
    given = [" ".join(words) for words in commands(ROOT / "README.md")]
    assert {"make demo", "make test"} <= set(given)


def test_a_page_with_a_dead_link_or_an_unknown_target_is_caught(tmp_path: Path) -> None:
    """The checks find a link without a target and an unknown `make` target."""
    page = tmp_path / "page.md"
    page.write_text("[a](gone.md) [b](#no-such) \n# Here\n[c](#here)\n```sh\nmake nonsense\n```\n", "utf-8")
    assert list(broken_links(page)) == ["gone.md", "#no-such"]
    assert list(unknown_commands(page, make_targets())) == ["make nonsense"]

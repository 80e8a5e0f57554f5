"""Every Python block of README and docs runs alone, as if a reader pasted it: with its own namespace and folder.

A block below `<!-- pending: package:name -->` may show a name that does not exist yet. Such a block is only compiled
until the name can be imported, and runs from then on.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import pytest
from sybil import Example, Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ends_soon")]

ROOT = Path(__file__).resolve().parents[2]
# pages on Spark need Spark: tests/spark/test_pages.py runs them; test_tutorial.py runs the tutorial, in its order
ELSEWHERE = ("spark", "tutorial")
DOCS = (page for page in (ROOT / "docs").rglob("*.md") if not page.name.startswith(ELSEWHERE))
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS])
# pages whose examples start an embedded server, or librdkafka's imitation of a cluster
REAL = frozenset({"README.md", "docs/apscheduler.md", "docs/kafka.md"})
MARKS = dict.fromkeys(REAL, pytest.mark.real) | {"docs/testing-handlers.md": pytest.mark.slow}  # runs many histories
PENDING = re.compile(r"<!-- pending: ([\w.]+):(\w+) -->\s*\Z")


@dataclass(slots=True)
class Outcome:
    """The line numbers of the blocks that ran, and of the blocks whose pending name cannot be imported yet."""

    ran: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)


def run_page(page: Path, folder: Path) -> Outcome:
    document = Sybil(parsers=[PythonCodeBlockParser()]).parse(page)
    outcome = Outcome()
    for example in document.examples():
        if waits(example):
            compile(example.parsed, str(page), "exec")
            outcome.waiting.append(example.line)
        else:
            run_alone(example, folder / f"line-{example.line}")
            outcome.ran.append(example.line)
    return outcome


def run_alone(example: Example, folder: Path) -> None:
    """Run a block in a new module and a new folder."""
    # Dataclasses and typing look up a class's module by name, so the block needs one while it runs.
    module = ModuleType(f"block_{example.line}")
    example.document.namespace = module.__dict__
    sys.modules[module.__name__] = module
    folder.mkdir()
    before = Path.cwd()
    os.chdir(folder)
    try:
        example.evaluate()
    finally:
        os.chdir(before)
        del sys.modules[module.__name__]


def waits(example: Example) -> bool:
    mark = PENDING.search(example.document.text[: example.start])
    return mark is not None and not importable(mark[1], mark[2])


def importable(module: str, name: str) -> bool:
    try:
        return hasattr(importlib.import_module(module), name)
    except ImportError:
        return False


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", [pytest.param(p, id=name_of(p), marks=MARKS.get(name_of(p), ())) for p in PAGES])
def test_every_example_of_the_page_runs_alone(page: Path, tmp_path: Path) -> None:
    """A reader who pastes any one of the page's blocks sees no error."""
    outcome = run_page(page, tmp_path)
    assert len(outcome.ran) + len(outcome.waiting) == page.read_text("utf-8").count("```python\n")


def test_a_wrong_example_fails(tmp_path: Path) -> None:
    """A failing example fails its page."""
    page = tmp_path / "page.md"
    page.write_text("```python\nx = 1\nassert x == 2\n```\n", "utf-8")
    with pytest.raises(AssertionError):
        run_page(page, tmp_path)


def test_an_example_that_needs_another_fails(tmp_path: Path) -> None:
    """A block does not see the imports and names of the blocks above it."""
    page = tmp_path / "page.md"
    page.write_text("```python\nx = 1\n```\n\n```python\nassert x == 1\n```\n", "utf-8")
    with pytest.raises(NameError):
        run_page(page, tmp_path)


def test_a_pending_example_runs_as_soon_as_its_name_is_there(tmp_path: Path) -> None:
    """A block with the mark `pending` runs as soon as the name in the mark can be imported."""
    page = tmp_path / "page.md"
    block = "```python\nassert False\n```\n"
    page.write_text(f"<!-- pending: wheel_sched.nowhere:thing -->\n{block}", "utf-8")
    assert run_page(page, tmp_path) == Outcome(ran=[], waiting=[2])
    page.write_text(f"<!-- pending: wheel_sched.errors:Rejected -->\n{block}", "utf-8")
    with pytest.raises(AssertionError):
        run_page(page, tmp_path)

"""Rules about the files of this repository. Each check also runs on a small tree that breaks the rule."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("wheel_sched", "retry_topic", "integrations")
LINES_AT_MOST = 500
DRAWERS = frozenset({"utils", "util", "helpers", "helper", "common", "misc", "base"})
DOCSTRING = re.compile(
    r'(?:#.*\n|\s)*r?""".', re.DOTALL
)  # this repository's form of a docstring; to parse each file takes 20 times as long

# A regular package in one of these folders would be imported *as* `celery` or `apscheduler` by whatever runs there.
FOLDERS_WITHOUT_INIT = ("integrations", "integrations/celery", "integrations/apscheduler")


def sources(root: Path, *folders: str) -> Iterator[Path]:
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py*")):
            if path.suffix in {".py", ".pyx"}:
                yield path


def god_files(root: Path) -> list[str]:
    lengths = ((path, len(path.read_text("utf-8").splitlines())) for path in sources(root, *PACKAGES))
    return [f"{path.relative_to(root)}: {lines} lines" for path, lines in lengths if lines > LINES_AT_MOST]


def drawers(root: Path) -> list[str]:
    return [str(path.relative_to(root)) for path in sources(root, *PACKAGES) if path.stem.lstrip("_") in DRAWERS]


def shadowing_packages(root: Path) -> list[str]:
    inits = [root / folder / "__init__.py" for folder in FOLDERS_WITHOUT_INIT]
    inits += sorted((root / "tests").rglob("__init__.py"))
    return [str(path.relative_to(root)) for path in inits if path.exists()]


def undocumented_modules(root: Path) -> list[str]:
    modules = (path for path in sources(root, *PACKAGES) if path.suffix == ".py")
    return [str(path.relative_to(root)) for path in modules if not DOCSTRING.match(path.read_text("utf-8"))]


def untyped_packages(root: Path) -> list[str]:
    # a marker counts for everything below it (PEP 561)
    packages = (path.parent for path in sources(root, *PACKAGES) if path.name == "__init__.py")
    return [
        str(package.relative_to(root))
        for package in packages
        if not any((folder / "py.typed").exists() for folder in (package, *package.parents))
    ]


CHECKS: dict[Callable[[Path], list[str]], tuple[str, str]] = {
    god_files: ("wheel_sched/everything.py", "x = 1\n" * (LINES_AT_MOST + 1)),
    drawers: ("retry_topic/brokers/_utils.py", '"""Odds and ends."""\n'),
    shadowing_packages: ("integrations/celery/__init__.py", ""),
    undocumented_modules: ("wheel_sched/silent.py", "x = 1\n"),
    untyped_packages: ("retry_topic/__init__.py", '"""A package that says nothing of its types."""\n'),
}
every_check = pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)


@every_check
def test_the_tree_breaks_no_rule(check: Callable[[Path], list[str]]) -> None:
    """In this repository each check finds no file that breaks its rule."""
    assert check(ROOT) == []


@every_check
def test_a_tree_that_breaks_the_rule_is_caught(check: Callable[[Path], list[str]], tmp_path: Path) -> None:
    """Each check reports the one file of a small tree that breaks its rule, so no check passes because it finds
    nothing."""
    name, content = CHECKS[check]
    offender = tmp_path / name
    offender.parent.mkdir(parents=True)
    offender.write_text(content, "utf-8")
    found = check(tmp_path)
    expected = name.removesuffix("/__init__.py") if check is untyped_packages else name
    assert len(found) == 1
    assert found[0].startswith(expected)

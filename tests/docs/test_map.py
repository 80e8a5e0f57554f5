"""The architecture page names every package of the product, and every file that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architecture.md"
PRODUCT = (
    ROOT / "wheel_sched",
    ROOT / "retry_topic",
    ROOT / "integrations" / "celery" / "wheel_sched_celery",
    ROOT / "integrations" / "apscheduler" / "wheel_sched_apscheduler",
)
SCREEN = 48  # lines of a section that fit a screen
SECTION = re.compile(r"^### `([\w./]+)/?`", re.MULTILINE)
FILE = re.compile(r"`((?:[\w.-]+/)*[\w.-]+\.(?:py|pyx|lua|toml|md)|(?:[\w.-]+/)+)`")


def short(folder: Path) -> str:
    """Return the name of a package as the page writes it.

    `integrations/celery/wheel_sched_celery/x` becomes `wheel_sched_celery/x`. Other packages have their path in the
    repository.
    """
    path = folder.relative_to(ROOT)
    return "/".join(path.parts[2:] if path.parts[0] == "integrations" else path.parts)


def folders() -> dict[str, Path]:
    found = {
        short(path.parent): path.parent
        for top in PRODUCT
        for path in top.rglob("*")
        if path.suffix in (".py", ".lua") and "__pycache__" not in path.parts
    }
    return dict(sorted(found.items()))


def sections(text: str) -> dict[str, str]:
    """The section of each package: the text from its heading to the next heading of any rank."""
    parts = re.split(r"^(?=#{2,3} )", text, flags=re.MULTILINE)
    return {match[1].rstrip("/"): part for part in parts if (match := SECTION.match(part))}


def not_on_the_map(names: list[str], page: dict[str, str]) -> list[str]:
    """The packages that the page lacks: they have no section, and the section of their parent does not name them."""
    return [name for name in names if name not in page and not is_named_above(name, page)]


def is_named_above(name: str, page: dict[str, str]) -> bool:
    above, _, last = name.rpartition("/")
    return f"`{last}/`" in page.get(above, "")


def files_that_are_gone(section: str, folder: Path) -> list[str]:
    return [
        name
        for name in FILE.findall(section)
        if not any((base / name).exists() for base in (folder, folder.parent, ROOT, *PRODUCT))
        and not any(folder.glob(f"*/{name}"))
    ]


def test_every_package_is_on_the_map() -> None:
    """Each package has a section, or the section of its parent names it."""
    assert not_on_the_map(list(folders()), sections(PAGE.read_text("utf-8"))) == []


def test_every_section_is_of_a_package_that_exists() -> None:
    assert [name for name in sections(PAGE.read_text("utf-8")) if name not in folders()] == []


@pytest.mark.parametrize("name", sections(PAGE.read_text("utf-8")))
def test_a_section_names_files_that_exist_and_fits_a_screen(name: str) -> None:
    """Each file that a section names exists, and the section is short enough for one screen.

    A name may be relative to the package, to one of its folders, to its parent folder, to the repository or to a top
    package of the product.
    """
    section = sections(PAGE.read_text("utf-8"))[name]
    assert files_that_are_gone(section, folders()[name]) == []
    assert section.count("\n") <= SCREEN


def test_the_search_for_missing_files_finds_them() -> None:
    """The checks of this module find a missing file and a package without a section."""
    wheel = ROOT / "wheel_sched" / "wheel"
    assert files_that_are_gone("`pure.py`, `gone.py` and `wheel_sched/gone/`", wheel) == [
        "gone.py",
        "wheel_sched/gone/",
    ]
    assert not_on_the_map(["a", "b", "a/c", "a/d"], {"a": "`c/` is here"}) == ["b", "a/d"]

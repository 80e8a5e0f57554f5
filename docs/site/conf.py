"""Settings of Sphinx for the documentation site. `prepare.py` writes the pages that it reads."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from sphinx.ext.autodoc.mock import mock
from sphinx.ext.napoleon import Config, GoogleDocstring
from sphinx.util import logging

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

project = "wheel-sched"
author = "the contributors of wheel-sched"
copyright = "the contributors of wheel-sched, Apache-2.0"  # noqa: A001 - Sphinx chose the name
extensions = ["myst_parser", "sphinx.ext.autodoc"]

# The pages are plain Markdown that a code host shows too. Anchors of headings are those of code hosts.
myst_heading_anchors = 6
myst_links_external_new_tab = False
suppress_warnings = ["myst.header"]  # the changelog starts below a heading of the second rank

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
autodoc_mock_imports = ["pyspark", "pyarrow", "pandas", "numpy"]  # half a gigabyte, for signatures alone
python_maximum_signature_line_length = 100

# Every link between pages must lead somewhere (`-n`). Types of other libraries and of private modules have no page.
nitpick_ignore_regex = [("py:.*", ".*")]

toc_object_entries = False  # each page shows all contents; with every method in them a build takes longer
html_domain_indices = False
html_theme = "furo"
html_title = "wheel-sched"
html_copy_source = False
html_show_sphinx = False
html_extra_path = ["extra"]
exclude_patterns = ["extra"]
html_last_updated_fmt = None  # two builds of one tree are equal

CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


def as_rest(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Make reStructuredText of a docstring: names in single backticks are code, as in Markdown, and a table is shown as
    it is. The sections "Args:" and "Raises:" become fields. The docstring of a property is text alone: napoleon would
    take what stands before a colon for its type."""
    text: list[str] = []
    for line in lines:
        table = line.startswith("|")
        if table and not (text and text[-1].startswith("   |")):
            text.append("::\n\n")
        text.append(f"   {line}" if table else CODE.sub(r"``\1``\\ ", line))
    if what not in ("property", "attribute", "data"):
        text = GoogleDocstring("\n".join(text), Config(), app, what, name, obj, options).lines()
    lines[:] = "\n".join(text).split("\n")


def public_names() -> dict[str, list[str]]:
    """The public names of each page of the reference. Some packages import a name at its first use, and autodoc sees
    only what is there: so each name is used once."""
    found = {}
    with mock(autodoc_mock_imports):
        for page in sorted((Path(__file__).parent / "api").glob("*.rst")):
            package = importlib.import_module(page.stem)
            found[page.stem] = names_of(package)
            vars(package).update({name: getattr(package, name) for name in found[page.stem]})
    return found


def names_of(module: ModuleType) -> list[str]:
    """The names in `__all__`. Of a module without it: the public classes and functions that the module defines."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]


def homes() -> dict[tuple[str, str], str]:
    """The package whose page describes a class or function, by where it is defined. Of several, the outermost one."""
    found: dict[tuple[str, str], str] = {}
    for package in sorted(PUBLIC, key=lambda name: (name.count("."), name)):
        for name in PUBLIC[package]:
            if place := place_of(vars(importlib.import_module(package))[name]):
                found.setdefault(place, package)
    return found


def place_of(value: Any) -> tuple[str, str] | None:
    return (value.__module__, value.__qualname__) if isinstance(value, type | FunctionType) else None


def is_described_in(package: str, value: Any) -> bool:
    place = place_of(value)
    return place is None or HOMES[place] == package


def skip(app: Sphinx, what: str, name: str, obj: Any, skipped: bool, options: Any) -> bool | None:
    """Describe each public class and function on one page only."""
    package = app.env.docname.removeprefix("api/")
    if what == "module" and name in PUBLIC.get(package, ()) and not is_described_in(package, obj):
        return True
    return None


def add_values(app: Sphinx, page: str, source: list[str]) -> None:
    """Add the constants and aliases of a package to its page. Autodoc leaves out those without a docstring."""
    package = page.removeprefix("api/")
    for name in PUBLIC.get(package, ()):
        value = vars(importlib.import_module(package))[name]
        if hasattr(value, "__args__"):
            source[0] += f"\n.. py:data:: {name}\n   :module: {package}\n   :value: {value}\n"
        elif not callable(value):
            source[0] += f"\n.. py:data:: {name}\n   :module: {package}\n   :type: {type(value).__name__}\n"


def warn_of_gaps(app: Sphinx, env: BuildEnvironment) -> None:
    """Warn of each public name that the reference lacks."""
    described = set(env.domains["py"].objects)  # type: ignore[attr-defined]
    for package, names in PUBLIC.items():
        for name in names:
            value = vars(importlib.import_module(package))[name]
            if is_described_in(package, value) and f"{package}.{name}" not in described:
                logging.getLogger(__name__).warning("not in the reference: %s.%s", package, name)


PUBLIC = public_names()
HOMES = homes()


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", as_rest)
    app.connect("autodoc-skip-member", skip)
    app.connect("source-read", add_values)
    app.connect("env-check-consistency", warn_of_gaps)

"""Reads a checkout: the packages of the product, their modules, and what each module imports.

This module reads the files of the checkout and imports none of them. So it can measure any commit.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

# import name of each product package -> its folder in a checkout
PACKAGES = {
    "wheel_sched": "wheel_sched",
    "retry_topic": "retry_topic",
    "wheel_sched_celery": "integrations/celery/wheel_sched_celery",
    "wheel_sched_apscheduler": "integrations/apscheduler/wheel_sched_apscheduler",
}
SUFFIXES = frozenset({".py", ".pyx", ".pxi", ".lua"})

# "package.module:attribute" or "package.module", and nothing else in the string
DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)?")


@dataclass(frozen=True, slots=True)
class Import:
    """One import of one module by another.

    Args:
        source: the importing module.
        target: the imported module or package.
        line: the line of the import.
        string: True for a name in a string, as `"module:attribute"` or `import_module("module")`.
    """

    source: str
    target: str
    line: int
    string: bool = False


@dataclass(frozen=True)
class Module:
    """One Python module of the product."""

    name: str
    path: Path
    tree: ast.Module

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All nodes of the syntax tree. They are collected once, because that takes most of the program's time."""
        return tuple(ast.walk(self.tree))

    @cached_property
    def bound(self) -> frozenset[str]:
        """The names that the module's own statements bind at its top level, also under `if` and `try`."""
        found: set[str] = set()
        for node in top_level(self.tree.body):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                found.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = (part for target in targets for part in ast.walk(target))
                found.update(part.id for part in names if isinstance(part, ast.Name))
        return frozenset(found)


def top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when a module is imported, also those under `if`, `try` and `with`."""
    for node in body:
        yield node
        for field in ("body", "orelse", "finalbody"):
            if isinstance(node, ast.If | ast.Try | ast.With):
                yield from top_level(getattr(node, field, []))
        for handler in getattr(node, "handlers", []):
            yield from top_level(handler.body)


class Tree:
    """The product's files under one folder.

    Args:
        root: the folder of a checkout.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.folders = {name: self.root / place for name, place in PACKAGES.items() if (self.root / place).is_dir()}

    def place(self, path: Path) -> str:
        """The path as the reports print it."""
        return path.relative_to(self.root).as_posix()

    @cached_property
    def files(self) -> dict[Path, int]:
        """Every product source file and its number of lines."""
        paths = (path for folder in self.folders.values() for path in sorted(folder.rglob("*")))
        return {path: len(path.read_text("utf-8").splitlines()) for path in paths if path.suffix in SUFFIXES}

    @cached_property
    def modules(self) -> dict[str, Module]:
        """Every Python module of the product by its import name."""
        found = {}
        for path in self.files:
            if path.suffix == ".py":
                name = self.module_name(path)
                found[name] = Module(name, path, ast.parse(path.read_text("utf-8"), str(path)))
        return found

    def module_name(self, path: Path) -> str:
        """The import name of a file of the product.

        Raises:
            ValueError: the file lies in no product package.
        """
        for name, folder in self.folders.items():
            if path.is_relative_to(folder):
                parts = path.relative_to(folder).with_suffix("").parts
                return ".".join((name, *(parts[:-1] if parts[-1] == "__init__" else parts)))
        raise ValueError(f"expected a file of a product package, got: {path}")

    @cached_property
    def imports(self) -> list[Import]:
        """All import statements between product modules, also those in functions and under `if TYPE_CHECKING`.

        `from package import name` imports the submodule of that name, unless the package binds the name itself. Python
        initializes a package before its submodules; this does not count as an import of the package.
        """
        found: dict[tuple[str, str], Import] = {}
        for module in self.modules.values():
            for node in module.nodes:
                if isinstance(node, ast.Import | ast.ImportFrom):
                    for target in self._targets(module, node):
                        if target != module.name:
                            found.setdefault((module.name, target), Import(module.name, target, node.lineno))
        return list(found.values())

    def _targets(self, module: Module, node: ast.Import | ast.ImportFrom) -> Iterator[str]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if (target := self.resolve(alias.name)) is not None:
                    yield target
            return
        origin = node.module or ""
        if node.level:
            parts = module.name.split(".")
            parents = parts[: len(parts) - node.level + module.is_package]
            origin = ".".join(filter(None, (*parents, origin)))
        for alias in node.names:
            package = self.modules.get(origin)
            submodule = f"{origin}.{alias.name}"
            if submodule in self.modules and not (package and self._binds(package, alias.name)):
                yield submodule
            elif (target := self.resolve(origin)) is not None:
                yield target

    def _binds(self, package: Module, name: str) -> bool:
        """Whether a package binds the name of one of its submodules to an object other than that submodule."""
        own = [node for node in top_level(package.tree.body) if isinstance(node, ast.ImportFrom)]
        itself = any(node.module == package.name and name in {alias.name for alias in node.names} for node in own)
        return name in package.bound and not itself

    def resolve(self, dotted: str) -> str | None:
        """The longest beginning of a dotted name that is a module of the product; None if there is none."""
        parts = dotted.split(".")
        for count in range(len(parts), 0, -1):
            name = ".".join(parts[:count])
            if name in self.modules:
                return name
        return None

    def strings(self, module: Module) -> Iterator[ast.Constant]:
        """The string constants of a module that are not docstrings."""
        docstrings = {id(node.value) for node in module.nodes if isinstance(node, ast.Expr)}
        for node in module.nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                yield node

"""Computes figures from the source: import circles, class names, layers, sizes, public names."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from tests.house.tree import DOTTED, PACKAGES, Import, Module, Tree, top_level

LINES_AT_MOST = 400
CORE = "wheel_sched"
GUESTS = tuple(name for name in PACKAGES if name != CORE)
GUEST_MODULE = re.compile(r"\b(retry_topic[.:](?=\w)|(wheel_sched_celery|wheel_sched_apscheduler)\b)|^retry_topic$")

# full name of a layer -> its height, and its number among siblings that must not import each other (else None)
Layers = dict[str, tuple[int, int | None]]

# Names that two classes may share, with the reason. Each pair is a compiled class and a Python class in one folder.
ONE_MEANING = {
    "TimingWheel": "the compiled wheel and its twin in Python keep one contract and pass one suite",
    "TimerTaskEntry": "the entry of the compiled wheel and of its twin in Python, see TimingWheel",
}
_COMPILED_CLASS = re.compile(r"^(?:cdef |cpdef )?class (\w+)", re.MULTILINE)


def import_circles(tree: Tree) -> list[list[str]]:
    """The sets of modules that import each other, directly or through other modules; the largest set first."""
    edges: dict[str, list[str]] = {name: [] for name in tree.modules}
    for found in tree.imports:
        edges[found.source].append(found.target)
    circles = [sorted(part) for part in _components(edges) if len(part) > 1]
    return sorted(circles, key=lambda circle: (-len(circle), circle))


def _components(edges: dict[str, list[str]]) -> Iterator[list[str]]:
    """The strongly connected components of a graph (Tarjan, SIAM J. Comput. 1972), without recursion."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    for root in edges:
        if root in number:
            continue
        work = [(root, iter(edges[root]))]
        number[root] = lowest[root] = len(number)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, targets = work[-1]
            for target in targets:
                if target not in number:
                    number[target] = lowest[target] = len(number)
                    stack.append(target)
                    on_stack.add(target)
                    work.append((target, iter(edges[target])))
                    break
                if target in on_stack:
                    lowest[node] = min(lowest[node], number[target])
            else:
                work.pop()
                if work:
                    lowest[work[-1][0]] = min(lowest[work[-1][0]], lowest[node])
                if lowest[node] == number[node]:
                    cut = stack.index(node)
                    yield stack[cut:]
                    on_stack.difference_update(stack[cut:])
                    del stack[cut:]


def public_classes(tree: Tree) -> dict[str, list[str]]:
    """The files that define a public class at their top level, by the name of the class."""
    places: dict[str, list[str]] = defaultdict(list)
    for module in tree.modules.values():
        names = {node.name for node in top_level(module.tree.body) if isinstance(node, ast.ClassDef)}
        for name in names:
            places[name].append(tree.place(module.path))
    for path in tree.files:
        if path.suffix in {".pyx", ".pxi"}:
            for name in set(_COMPILED_CLASS.findall(path.read_text("utf-8"))):
                places[name].append(tree.place(path))
    return {name: sorted(found) for name, found in sorted(places.items()) if not name.startswith("_")}


def names_with_two_meanings(tree: Tree) -> dict[str, list[str]]:
    """Public class names that more than one file defines, with the files. `ONE_MEANING` names the exceptions."""
    doubled = {name: places for name, places in public_classes(tree).items() if len(places) > 1}
    return {name: places for name, places in doubled.items() if not (name in ONE_MEANING and _are_twins(places))}


def _are_twins(places: list[str]) -> bool:
    folders = {place.rpartition("/")[0] for place in places}
    return len(places) == 2 and len(folders) == 1 and {place.rpartition(".")[2] for place in places} == {"py", "pyx"}


def upward_imports(tree: Tree) -> list[dict[str, Any]]:
    """Imports that break the layers which import-linter's contracts in the tree's pyproject.toml declare.

    An import between siblings that the contract separates (`a | b`) counts too. Strings that count as imports, see
    `string_imports`, are checked as well. In the package `wheel_sched`, every string that names another package's
    module is reported.
    """
    found = {(item.source, item.target, item.line): item for item in tree.imports if _goes_up(tree, item)}
    for item in string_imports(tree):
        foreign = _package(item.source) == CORE and _package(item.target) in GUESTS
        if foreign or _goes_up(tree, item):
            found.setdefault((item.source, item.target, item.line), item)
    return [
        {
            "from": item.source,
            "to": item.target,
            "place": f"{tree.place(tree.modules[item.source].path)}:{item.line}",
            "string": item.string,
        }
        for _, item in sorted(found.items())
    ]


def string_imports(tree: Tree) -> Iterator[Import]:
    """Yield an import for each string that counts as one: "module:attribute" and an argument of `import_module`.

    In the package `wheel_sched`, each string that contains the name of another package's module counts too.
    """
    for module in tree.modules.values():
        arguments = set(_arguments_of_import_module(module))
        for node in tree.strings(module):
            text = str(node.value)
            if _package(module.name) == CORE and (hit := GUEST_MODULE.search(text)) is not None:
                dotted = re.match(r"[\w.]+", text[hit.start() :])
                name = dotted.group().rstrip(".") if dotted else text
                yield Import(module.name, tree.resolve(name) or name, node.lineno, string=True)
            elif DOTTED.fullmatch(text) and (":" in text or id(node) in arguments):
                target = tree.resolve(text.partition(":")[0])
                if target is not None:
                    yield Import(module.name, target, node.lineno, string=True)


def _arguments_of_import_module(module: Module) -> Iterator[int]:
    for node in module.nodes:
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in {"import_module", "__import__"}:
                yield from (id(argument) for argument in node.args)


def _package(module: str) -> str:
    return module.partition(".")[0]


def _goes_up(tree: Tree, item: Import) -> bool:
    return any(_breaks(layers, item) for layers in _contracts(tree.root))


@cache
def _contracts(root: Path) -> tuple[Layers, ...]:
    return tuple(_contracts_of(root))


def _contracts_of(root: Path) -> Iterable[Layers]:
    """Yield the layers of each `layers` contract of import-linter in pyproject.toml.

    A contract may have several containers: packages whose submodules are the layers. Yields once for each container.
    """
    path = root / "pyproject.toml"
    linter = tomllib.loads(path.read_text("utf-8")).get("tool", {}).get("importlinter", {}) if path.exists() else {}
    for contract in linter.get("contracts", []):
        if contract.get("type") != "layers":
            continue
        for container in contract.get("containers") or [""]:
            layers: Layers = {}
            for height, line in enumerate(reversed(contract["layers"])):
                apart = "|" in line
                for number, name in enumerate(re.split(r"[|:]", line)):
                    full = ".".join(filter(None, (container, name.strip(" ()"))))
                    layers[full] = (height, number if apart else None)
            yield layers


def _breaks(layers: Layers, item: Import) -> bool:
    source, target = _layer(layers, item.source), _layer(layers, item.target)
    if source is None or target is None or source == target:
        return False
    (height, number), (other, sibling) = layers[source], layers[target]
    return other > height or (other == height and None not in (number, sibling) and number != sibling)


def _layer(layers: Layers, module: str) -> str | None:
    parts = module.split(".")
    names = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((name for name in names if name in layers), None)


def files_over_400(tree: Tree) -> dict[str, int]:
    """Product files of more than 400 lines, the longest first."""
    long = {tree.place(path): lines for path, lines in tree.files.items() if lines > LINES_AT_MOST}
    return dict(sorted(long.items(), key=lambda item: (-item[1], item[0])))


def longest_function(tree: Tree) -> dict[str, Any] | None:
    """The function with the most lines, docstring included. Functions in Cython do not count."""
    found = [
        {"name": name, "place": f"{tree.place(module.path)}:{node.lineno}", "lines": _length(node)}
        for module in tree.modules.values()
        for name, node in _functions(module.tree, ())
    ]
    return max(found, key=lambda entry: (entry["lines"], entry["place"]), default=None)


def _functions(node: ast.AST, outer: tuple[str, ...]) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for child in ast.iter_child_nodes(node):
        inner = outer
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = (*outer, child.name)
            if not isinstance(child, ast.ClassDef):
                yield ".".join(inner), child
        yield from _functions(child, inner)


def _length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def lines(tree: Tree) -> dict[str, int]:
    """The number of lines of the product's source (Python, Cython, Lua), by package and in total."""
    by_package = dict.fromkeys(PACKAGES, 0)
    for path, count in tree.files.items():
        by_package[_package(tree.module_name(path))] += count
    return by_package | {"total": sum(by_package.values())}


def public_names(tree: Tree) -> dict[str, int]:
    """The number of names in the `__all__` lists of each top-level package and its subpackages.

    The entry `public_classes` has the number of public class names in all packages together.
    """
    by_package = dict.fromkeys(PACKAGES, 0)
    for module in tree.modules.values():
        if module.is_package:
            by_package[_package(module.name)] += len(_all_of(module))
    return by_package | {"public_classes": len(public_classes(tree))}


def _all_of(module: Module) -> set[str]:
    """The names that a literal `__all__` lists."""
    names: set[str] = set()
    for node in top_level(module.tree.body):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            values = ast.walk(node)
            names.update(
                part.value for part in values if isinstance(part, ast.Constant) and isinstance(part.value, str)
            )
    return names


def structure(tree: Tree) -> dict[str, Any]:
    """All figures that this module can compute, by name."""
    return {
        "import_circles": import_circles(tree),
        "names_with_two_meanings": names_with_two_meanings(tree),
        "upward_imports": upward_imports(tree),
        "files_over_400": files_over_400(tree),
        "longest_function": longest_function(tree),
        "lines": lines(tree),
        "public_names": public_names(tree),
    }

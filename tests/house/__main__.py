"""Measure the structure of the product: `python -m tests.house [--json] [--tree DIR] [--verbose] [--no-rooms]`.

DIR may be a checkout of any commit, so the same program can measure the product before and after a change. The module
`structure` computes figures from the source, and `rooms` computes figures from traced runs.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from tests.house.rooms import WAYS, rooms
from tests.house.structure import structure
from tests.house.tree import Tree

ROOT = Path(__file__).resolve().parents[2]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.house", description="Measure the structure of the product.")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--tree", type=Path, default=ROOT, metavar="DIR", help="the checkout to measure")
    parser.add_argument("--verbose", action="store_true", help="also list what was counted, module by module")
    parser.add_argument("--no-rooms", action="store_true", help="leave the traced runs out")
    parser.add_argument("--way", action="append", choices=WAYS, help="trace only this program in ways/ (repeatable)")
    given = parser.parse_args(arguments)
    tree = Tree(given.tree)
    if not tree.folders:
        parser.error(f"expected --tree to be a checkout with a package of the product, got: {given.tree}")
    found = structure(tree)
    if not given.no_rooms:
        found["rooms"] = rooms(tree, given.way or WAYS, with_modules=given.verbose)
    if given.json:
        print(json.dumps(found, indent=2))  # noqa: T201 - the program's output
    else:
        print(table(found, verbose=given.verbose))  # noqa: T201 - the program's output


def table(found: dict[str, Any], *, verbose: bool) -> str:
    """Return the figures as text, one line each. With `verbose`, the things that a figure counts follow its line."""
    rows: list[str] = []
    for name in ("import_circles", "names_with_two_meanings", "upward_imports", "files_over_400"):
        rows.append(f"{name:<26}{len(found[name])}")
        if verbose:
            entries = found[name].items() if isinstance(found[name], dict) else found[name]
            rows += [f"    {entry}" for entry in entries]
    longest = found["longest_function"]
    if longest is not None:
        rows.append(f"{'longest_function':<26}{longest['lines']} lines: {longest['name']}, {longest['place']}")
    for name in ("lines", "public_names"):
        rows.append(f"{name:<26}{', '.join(f'{part} {count}' for part, count in found[name].items())}")
    for way, count in found.get("rooms", {}).items():
        summary = "not measured" if count is None else f"{count['total']} (core {count['core']}, own {count['own']})"
        rows.append(f"{'rooms: ' + way:<26}{summary}")
        if verbose and count is not None:
            rows += [f"    {module}" for module in count["modules"]]
    return "\n".join(rows)


if __name__ == "__main__":
    main(sys.argv[1:])

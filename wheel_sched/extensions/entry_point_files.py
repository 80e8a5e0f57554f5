"""Finds entry points without `importlib.metadata`, whose import alone would make `--help` a quarter slower.

For packages in folders of `sys.path` the result equals that of `importlib.metadata.entry_points(group=...)`. When
`sys.path` names a file, such as a zip file, this module calls `importlib.metadata` instead.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import NamedTuple

_KINDS = (".dist-info", ".egg-info")


class EntryPoint(NamedTuple):
    """A name and the "module:attribute" that it stands for."""

    name: str
    value: str


def entry_points(group: str) -> list[EntryPoint]:
    """The entry points of a group, sorted by name. If a package is installed twice, the first in `sys.path` counts."""
    if any(os.path.isfile(place) for place in sys.path):  # noqa: PTH113  # pathlib is slow to import too
        from importlib.metadata import entry_points

        return sorted(EntryPoint(entry.name, entry.value) for entry in entry_points(group=group))
    seen: set[str] = set()
    found: list[EntryPoint] = []
    for place in sys.path:
        for package, folder in _packages(place or "."):
            if package not in seen:
                seen.add(package)
                found += _of_group(folder, group)
    return sorted(found)


def _packages(place: str) -> Iterator[tuple[str, str]]:
    """Yield for each package installed in the folder `place`: its name without version, and its metadata folder."""
    try:
        with os.scandir(place) as entries:
            for entry in entries:
                stem, kind = os.path.splitext(entry.name)  # noqa: PTH122
                if kind in _KINDS:
                    yield stem.partition("-")[0].lower().replace("_", "-").replace(".", "-"), entry.path
    except OSError:  # the folder does not exist
        return


def _of_group(folder: str, group: str) -> Iterator[EntryPoint]:
    """Yield a package's entry points of one group: the lines `name = value` below the line `[group]`."""
    try:
        with open(f"{folder}/entry_points.txt", encoding="utf-8") as file:  # noqa: PTH123
            lines = file.read().splitlines()
    except OSError:  # most packages have none
        return
    section = ""
    for line in map(str.strip, lines):
        name, sign, value = line.partition("=")
        if line.startswith("["):
            section = line.strip("[]").strip()
        elif section == group and sign and not line.startswith(("#", ";")):
            yield EntryPoint(name.strip(), value.strip())

"""Makes it look as if only the core were installed. Each Python with this folder on PYTHONPATH runs this at its start.

No other package of this project can be imported, and the core's metadata names no extension.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.abc import MetaPathFinder
from typing import Any

from wheel_sched.cli import entry_points

GUESTS = frozenset({"retry_topic", "wheel_sched_apscheduler", "wheel_sched_celery"})


class Absent(MetaPathFinder):
    """Finds no guest, wherever it is installed."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] in GUESTS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


_packages = entry_points._packages


def _without_ours(place: str) -> Iterator[tuple[str, str]]:
    return (package for package in _packages(place) if package[0] != "wheel-sched")


sys.meta_path.insert(0, Absent())
entry_points._packages = _without_ours

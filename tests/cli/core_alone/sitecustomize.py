"""Simulate that only the core is installed. Python runs this module at its start if this folder is on PYTHONPATH.

No other package of this project (a guest) can be imported, and the core's metadata names no extension.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.abc import MetaPathFinder
from typing import Any

from wheel_sched.extensions import entry_point_files as entry_points

GUESTS = frozenset({"retry_topic", "wheel_sched_apscheduler", "wheel_sched_celery"})


class Absent(MetaPathFinder):
    """An import finder that refuses every guest, even one that is installed."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] in GUESTS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


_packages = entry_points._packages


def _without_ours(place: str) -> Iterator[tuple[str, str]]:
    return (package for package in _packages(place) if package[0] != "wheel-sched")


sys.meta_path.insert(0, Absent())
entry_points._packages = _without_ours

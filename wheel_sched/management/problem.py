"""A problem that a person must solve, as commands and dashboards show it."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Problem(NamedTuple):
    """What is wrong, how to fix it, and how serious it is: a "problem" does harm now, a "warn" may do so later."""

    what: str
    fix: str
    level: Literal["warn", "problem"] = "warn"

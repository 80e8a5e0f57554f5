"""How many items a claim takes."""

from __future__ import annotations

from typing import Final

FIRST: Final = 50
"""The size of the first claim, before any claim was measured."""
LEAST: Final = 10
GREATEST: Final = 125
"""A larger batch is hardly cheaper per item, and when a process is killed, a whole batch may be published twice."""


class BatchSize:
    """How many items a claim may take, so that it keeps the server busy for a given time.

    While a server runs the script of a claim, all its other clients wait. How many items it can handle in that time
    depends on the machine and on the items. So the size follows the processor time that the server reports for each
    full claim. A smaller claim says little about a full one and is ignored.

    Args:
        fixed: a size that never changes; 0 = the size follows the server.
        script_us: how long a claim may keep the server busy, in microseconds.

    Attributes:
        limit: the present size.
    """

    __slots__ = ("_fixed", "_script_us", "limit")

    def __init__(self, fixed: int, script_us: int) -> None:
        self._fixed = bool(fixed)
        self._script_us = script_us
        self.limit = fixed or FIRST

    def claimed(self, items: int, script_us: int) -> None:
        """Note that a claim of so many items took the server so many microseconds; 0 = the store has not measured it.

        One claim changes the size by a quarter at most, because a single claim may be slow by chance.
        """
        if self._fixed or items < self.limit or not script_us:
            return
        factor = min(1.25, max(0.75, self._script_us / script_us))
        self.limit = min(GREATEST, max(LEAST, round(self.limit * factor)))

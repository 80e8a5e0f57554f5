"""DelayedFetch: wait for enough items, at most for a given time; then take all items that are there.

It is Kafka's `DelayedFetch` (`fetch.min.bytes`, `fetch.max.wait.ms`). Code that adds items calls `check_and_complete`.
The fetch counts the items first and takes them later, on completion. So it also takes items that came in between. A
fetch that is forced or expires may take fewer items, or none. So may a fetch whose items another one took first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from wheel_sched.errors import ConfigError
from wheel_sched.purgatory.operation import DelayedOperation, Lock

T = TypeVar("T")


class Available(NamedTuple):
    """The number of items that can be taken, and their size in bytes."""

    items: int
    size: int = 0


class DelayedFetch(DelayedOperation, Generic[T]):
    """Takes items when there are enough.

    Args:
        look: counts the items. Called under the operation's lock.
        take: takes the items. Called once, not under the operation's lock.
        respond: called once with the result of `take`.
        max_wait_ms: how long to wait for enough items.
        min_items: this many items are enough; 0 = their number does not matter. Defaults to 1.
        min_size: this many bytes are enough; 0 = their size does not matter. Defaults to 0.
        lock: see `DelayedOperation`.

    Raises:
        Rejected: `max_wait_ms` is not an int.
        ConfigError: a minimum is not a whole number from 0 up, or both minimums are 0.
    """

    __slots__ = ("_look", "_min_items", "_min_size", "_respond", "_take")

    def __init__(
        self,
        look: Callable[[], Available],
        take: Callable[[], T],
        respond: Callable[[T], object],
        *,
        max_wait_ms: int,
        min_items: int = 1,
        min_size: int = 0,
        lock: Lock | None = None,
    ) -> None:
        super().__init__(max_wait_ms, lock=lock)
        problems = [
            f"expected {name} to be a whole number from 0 up, got: {value!r}"
            for name, value in (("min_items", min_items), ("min_size", min_size))
            if type(value) is not int or value < 0
        ]
        if not problems and not min_items and not min_size:
            problems = ["expected min_items or min_size to be above 0: a fetch of nothing needs no wait"]
        if problems:
            raise ConfigError(problems)
        self._look = look
        self._take = take
        self._respond = respond
        self._min_items = min_items
        self._min_size = min_size

    def try_complete(self) -> bool:
        """Whether there are enough items or enough bytes."""
        items, size = self._look()
        return 0 < self._min_items <= items or 0 < self._min_size <= size

    def on_complete(self) -> None:
        """Take the items, and call `respond` with them."""
        self._respond(self._take())

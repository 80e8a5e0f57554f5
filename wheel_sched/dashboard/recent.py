"""What was read a moment ago, shared among pages and visitors.

A page that ten people watch is rendered once a second, and not ten times; numbers that are expensive to read are read
every few seconds.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")

_KEPT = 200


class _Value:
    """The newest value of one key. `at_s` is when reading it was begun."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.at_s = float("-inf")
        self.value: Any = None


class Recent:
    """Keeps the newest value of each of the last 200 keys that were asked for. Thread-safe.

    Args:
        clock: seconds that only rise. Defaults to `time.monotonic`.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: OrderedDict[Hashable, _Value] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, fresh_s: float, read: Callable[[], T]) -> T:
        """The value of a key, read anew when it is too old. Others who ask for it meanwhile wait for it.

        An error of `read` is raised, and nothing is kept.

        Args:
            key: what is read, with everything that it depends on.
            fresh_s: how old the value may be.
            read: reads it.
        """
        with self._lock:
            kept = self._kept.setdefault(key, _Value())
            self._kept.move_to_end(key)
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        with kept.lock:
            now_s = self._clock()
            if now_s - kept.at_s >= fresh_s:
                kept.value = read()
                kept.at_s = now_s
            found: T = kept.value
            return found

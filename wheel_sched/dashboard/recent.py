"""Keeps values that were read a moment ago, so that several requests share one read.

So a page that one visitor watches in ten windows is rendered once a second. Numbers that are slow to read are read
every few seconds for all visitors.
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
    """The newest value of one key. `at_s` is the time at which the read of this value began."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.at_s = float("-inf")
        self.value: Any = None


class Recent:
    """Keeps the newest value of each of the last 200 keys that were asked for. Thread-safe.

    Args:
        clock: returns seconds that never go back. Defaults to `time.monotonic`.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: OrderedDict[Hashable, _Value] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, fresh_s: float, read: Callable[[], T]) -> T:
        """The value of a key. If the value is too old, `read` is called; other callers for this key wait meanwhile.

        An error of `read` is raised, and nothing is kept.

        Args:
            key: names the value. Values that can differ need different keys.
            fresh_s: how many seconds old the value may be.
            read: reads the value.
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

"""Fragments of live pages, shared among viewers.

A page that ten people watch is rendered once a second, and not ten times.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable

_KEPT = 200


class _Fragment:
    """The newest rendering of one page for one visitor. `at_s` is when it was begun."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.at_s = float("-inf")
        self.text = b""


class LiveFragments:
    """The newest rendering of each page that somebody watches. Thread-safe.

    Args:
        fresh_s: how old a rendering may be. Defaults to 0.9 s, a little less than the time between two updates.
        clock: seconds that only rise. Defaults to `time.monotonic`.
    """

    def __init__(self, fresh_s: float = 0.9, clock: Callable[[], float] = time.monotonic) -> None:
        self._fresh_s = fresh_s
        self._clock = clock
        self._kept: OrderedDict[Hashable, _Fragment] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, render: Callable[[], bytes]) -> bytes:
        """The fragment of a page, rendered anew when it is too old. Others who ask for it meanwhile wait for it.

        An error of `render` is raised, and nothing is kept.

        Args:
            key: the page, its query, and everything about the visitor that the page shows.
            render: renders the fragment.
        """
        with self._lock:
            fragment = self._kept.setdefault(key, _Fragment())
            self._kept.move_to_end(key)
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        with fragment.lock:
            now_s = self._clock()
            if now_s - fragment.at_s >= self._fresh_s:
                fragment.text = render()
                fragment.at_s = now_s
            return fragment.text

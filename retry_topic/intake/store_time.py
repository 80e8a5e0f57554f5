"""The store's time for the intake. While the store works on a batch, the intake estimates the time."""

from __future__ import annotations

import time

from wheel_sched.store import DelayStore

_KEPT_NS = 1_000_000_000  # how long an answer is used
_DRIFT_PPM = 200  # two clocks drift against each other by less than this
_APART_NS = 10_000_000  # this process or its machine was suspended if its two clocks differ by more


class StoreTime:
    """The store's time, from its last answer and the time that has passed since.

    A store that works on a batch answers only afterwards, so asking it would keep the intake waiting. Only one thread
    may use an object.

    Args:
        store: an open delay store.
    """

    def __init__(self, store: DelayStore) -> None:
        self._store = store
        self._asked_ns = self._asked_wall_ns = 0
        self._answer_ms: int | None = None
        self.stepped = False
        """Whether the clock of the store has stepped forward since the last question. Estimates were too early then."""

    def ask(self) -> int:
        """Ask the store for its time in epoch ms. One round trip."""
        self._answer_ms, self.stepped = None, False
        self._asked_ns, self._asked_wall_ns = time.monotonic_ns(), time.time_ns()
        answer_ms = self._store.now_ms()
        if self._store.ticks:  # otherwise a test moves the store's clock
            self._answer_ms = answer_ms
        return answer_ms

    def heard(self, store_ms: int) -> None:
        """Compare the estimate with the store's time in the answer to another call (epoch ms).

        If the store's time is later, its clock has stepped forward. Then the store must be asked again.
        """
        estimate_ms = self.estimate()
        if estimate_ms is not None and store_ms > estimate_ms:
            self._answer_ms, self.stepped = None, True

    def estimate(self) -> int | None:
        """The store's time in epoch ms, or a time that is later by at most a round trip.

        It is earlier only if the store's clock has stepped forward since the store's last answer, see `heard`.

        None: the store must be asked, because its last answer is older than a second, or because this machine may have
        been suspended since.
        """
        if self._answer_ms is None:
            return None
        passed_ns = time.monotonic_ns() - self._asked_ns
        passed_wall_ns = time.time_ns() - self._asked_wall_ns
        if passed_ns > _KEPT_NS or abs(passed_wall_ns - passed_ns) > _APART_NS:
            return None
        longest_ns = passed_ns + passed_ns * _DRIFT_PPM // 1_000_000
        return self._answer_ms + 1 - -longest_ns // 1_000_000

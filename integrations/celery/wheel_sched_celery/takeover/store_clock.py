"""The store's clock, estimated in a worker from the store's replies."""

from __future__ import annotations

import time
from collections.abc import Callable

from wheel_sched.dispatcher.store_calls import ServerTime
from wheel_sched.errors import WheelSchedError
from wheel_sched_celery.wheel import Wheel

ASK_AGAIN_S = 5.0  # clocks drift by up to 0.1 ms a second, and the quickest of several replies gives the best estimate


class StoreClock:
    """The store's time as a worker knows it: never ahead of the store, and never going back.

    Args:
        wheel: whose store is asked.
        monotonic_ns: local time. Defaults to `time.monotonic_ns`.
    """

    def __init__(self, wheel: Wheel, monotonic_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._wheel = wheel
        self._monotonic_ns = monotonic_ns
        self._time = ServerTime()
        self._asked_us = 0
        self._highest_us = 0

    def now_us(self) -> int | None:
        """Microseconds since 1970; None until the store has answered. May ask the store."""
        local_us = self._monotonic_ns() // 1000
        if not self._time.known or local_us - self._asked_us > ASK_AGAIN_S * 1e6:
            self._ask()
        if not self._time.known:
            return None
        return self.estimate_us()

    def fresh_us(self) -> int | None:
        """As `now_us`, but None instead of asking the store."""
        local_us = self._monotonic_ns() // 1000
        if not self._time.known or local_us - self._asked_us > ASK_AGAIN_S * 1e6:
            return None
        return self.estimate_us()

    def estimate_us(self) -> int | None:
        """The last known time, however old its measurement; None until the store has answered."""
        if not self._time.known:
            return None
        self._highest_us = max(self._highest_us, self._time.now_us(self._monotonic_ns() // 1000))
        return self._highest_us

    def _ask(self) -> None:
        before_us = self._monotonic_ns() // 1000
        try:
            now_us = self._wheel.store_now_us()
        except WheelSchedError:
            return
        after_us = self._asked_us = self._monotonic_ns() // 1000
        self._time.observe(now_us, before_us, after_us)

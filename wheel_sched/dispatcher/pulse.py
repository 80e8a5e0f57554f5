"""The pulse: which of a dispatcher's threads are at work and have not been heard of for too long.

A thread is a member of a `HeartbeatMonitor` while it works and beats once a turn; it leaves before it waits for work,
so an idle dispatcher need not wake up to say that it lives. Whoever asks drives the monitor: a probe costs the threads
nothing, and without probes nothing ever expires. Kafka's `DelayedHeartbeat`, with turns for sessions.

Threads: any.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Final

from wheel_sched.clock import Clock
from wheel_sched.purgatory import HeartbeatMonitor

STUCK_AFTER_MS: Final = 60_000
"""A turn that lasts longer is stuck: every call a turn makes is bounded by a few seconds."""
SLOW_STORE_MS: Final = 2_000
"""A round trip that lasts longer makes the dispatcher not ready; milliseconds are usual."""


class Pulse:
    """Who is stuck.

    Args:
        clock: local time.
    """

    def __init__(self, clock: Clock) -> None:
        self._stuck: dict[str, None] = {}
        self._monitor: HeartbeatMonitor[str] = HeartbeatMonitor(STUCK_AFTER_MS, self._expired, clock=clock)
        self._clock = clock
        self._asked_ms: int | None = None
        self._lock = threading.Lock()  # an expiry is noted before its thread can be heard of again

    def beat(self, name: str, timeout_ms: int | None = None) -> None:
        """A turn begins; the next is expected within `timeout_ms`. Defaults to `STUCK_AFTER_MS`."""
        if not self._monitor.beat(name):
            with self._lock:
                self._stuck.pop(name, None)
                self._monitor.add(name, timeout_ms)

    def rest(self, name: str) -> None:
        """It waits for work: nothing is expected of it."""
        with self._lock:
            self._monitor.remove(name)
            self._stuck.pop(name, None)

    def stuck(self, *names: str) -> list[str]:
        """In words, who has been at one turn for too long: of `names`, or of all."""
        with self._lock:
            self._monitor.run_due()
            return [f"{name} is stuck at one turn" for name in self._stuck if not names or name in names]

    @contextlib.contextmanager
    def waiting_for_store(self) -> Iterator[None]:
        """The owner waits for the store's answer meanwhile."""
        self._asked_ms = self._clock.monotonic_ms()
        try:
            yield
        finally:
            self._asked_ms = None

    def waits_for_store(self) -> bool:
        """Whether an answer of the store is overdue: a server that hangs is seen before its call has timed out."""
        asked_ms = self._asked_ms
        return asked_ms is not None and self._clock.monotonic_ms() - asked_ms > SLOW_STORE_MS

    def __repr__(self) -> str:
        return f"<Pulse at_work={len(self._monitor)} stuck={list(self._stuck)}>"

    def _expired(self, name: str) -> None:
        self._stuck[name] = None

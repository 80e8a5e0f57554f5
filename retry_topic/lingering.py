"""Micro-batches on the way out: what comes within a few milliseconds is sent in one call of the broker.

A broker whose call costs the same for one message and for hundreds is better served with few calls. The first message
that is parked opens a `DelayedFetch`: it sends all there is when there is enough, or when the linger is over. With one
worker a dispatcher has one batch out at a time and there is nothing to wait for; a linger pays with several.

Threads: the dispatcher's workers publish; whoever completes the fetch, a worker or the reaper, sends.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from retry_topic.release.broker_publisher import BrokerPublisher, Entry
from wheel_sched.clock import Clock, SystemClock
from wheel_sched.dispatcher import Answer, Batch, Failed
from wheel_sched.errors import Rejected
from wheel_sched.escaping import logger_of
from wheel_sched.purgatory import Available, DelayedFetch, Purgatory
from wheel_sched.store import Claimed

logger = logger_of("retry_topic.publisher")

_PARKED = "parked"


class _Parked(NamedTuple):
    batch: Batch
    place: int
    entry: Entry


class LingeringPublisher:
    """A dispatcher's publisher that waits a moment for company.

    Args:
        publisher: what sends.
        linger_ms: how long the first message waits at most.
        messages: so many are enough to go at once.
        clock: local time. Defaults to the machine's.
    """

    asynchronous = True  # answers come when the fetch has sent

    def __init__(
        self, publisher: BrokerPublisher, *, linger_ms: int, messages: int, clock: Clock | None = None
    ) -> None:
        self.instant = publisher.instant
        self._publisher = publisher
        self._linger_ms = linger_ms
        self._messages = messages
        self._clock: Clock = SystemClock() if clock is None else clock
        self._purgatory: Purgatory[str] = Purgatory(clock=self._clock)
        self._lock = threading.Lock()
        self._parked: list[_Parked] = []
        self._fetch: DelayedFetch[list[_Parked]] | None = None

    def publish(self, batch: Batch) -> None:
        """See `Publisher`: park it."""
        parked = [_Parked(batch, place, entry) for place, entry in self._publisher.prepared(batch)]
        if not parked:
            return
        opened = None
        with self._lock:
            self._parked += parked
            if self._fetch is None:
                self._fetch = opened = DelayedFetch(
                    lambda: Available(len(self._parked)),
                    self._take,
                    self._send,
                    max_wait_ms=self._linger_ms,
                    min_items=self._messages,
                )
        if opened is None:
            self._purgatory.check_and_complete(_PARKED)
            return
        try:
            self._purgatory.try_complete_else_watch(opened, (_PARKED,))
        except (Rejected, RuntimeError):  # closed, or no thread to be had: nothing would ever send what is parked
            opened.force_complete()

    def refuse(self, item: Claimed, reason: str) -> Answer:
        """See `Publisher`."""
        return self._publisher.refuse(item, reason)

    def close(self) -> None:
        """Send what is parked, and end."""
        self._purgatory.close()

    def _take(self) -> list[_Parked]:
        with self._lock:
            parked, self._parked, self._fetch = self._parked, [], None
        return parked

    def _send(self, parked: list[_Parked]) -> None:
        now_ns = self._clock.monotonic_ns()
        ours = [one for one in parked if now_ns < one.batch.lease_until_ns]
        for one in parked:
            if now_ns >= one.batch.lease_until_ns:
                one.batch.acknowledge(one.place, Failed("its lease had run out before it was published"))
        if not ours:
            return
        try:
            answers = self._publisher.sent([(one.batch.items[one.place], one.entry) for one in ours])
        except Exception as error:
            logger.exception("publisher.failed", extra={"items": len(ours), "error": repr(error)})
            answers = [Failed(f"the broker failed: {error!r}", in_doubt=True)] * len(ours)
        for one, answer in zip(ours, answers, strict=True):
            one.batch.acknowledge(one.place, answer)

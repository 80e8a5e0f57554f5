"""The publishing threads: a worker publishes a batch only while this dispatcher holds its lease."""

from __future__ import annotations

import threading

from wheel_sched.dispatcher import Batch, DispatcherConfig, Failed, PublisherTraits
from wheel_sched.dispatcher.workers import Watchdog, Workers
from wheel_sched.store import Claim, Claimed, Done
from wheel_sched.testing import VirtualClock


class Recorder:
    """A publisher that remembers its batches."""

    traits = PublisherTraits()

    def __init__(self) -> None:
        self.published: list[str] = []

    def publish(self, batch: Batch) -> None:
        self.published += [item.id for item in batch.items]
        batch.answers[:] = [Done(item.id) for item in batch.items]

    def refuse(self, item: Claimed, reason: str) -> Failed:
        return Failed(reason)


def published(lease_until_ns: int, now_ms: int) -> tuple[list[str], Batch]:
    """Give a worker a batch whose lease ends at `lease_until_ns`. Return the ids that it publishes, and the batch."""
    recorder, through = Recorder(), threading.Event()
    batch = Batch(Claim(0, 1, 0, 1, None, None, []), [Claimed("a", 0, 1, "", b"")])
    batch.lease_until_ns = lease_until_ns
    clock = VirtualClock(now_ms)
    workers = Workers(recorder, DispatcherConfig(), clock, Watchdog(clock), lambda batch: through.set())
    workers.start()
    workers.give(batch)
    assert through.wait(10)
    workers.stop()
    workers.threads[0].join(10)
    return recorder.published, batch


def test_a_batch_under_lease_is_published() -> None:
    """A batch whose lease has not ended is published."""
    ids, batch = published(lease_until_ns=1_000_000_000, now_ms=999)
    assert ids == ["a"]
    assert batch.answers == [Done("a")]


def test_a_batch_whose_lease_ran_out_is_not_published() -> None:
    """A batch whose lease has ended, for example because the process was stopped, is not published. Another
    dispatcher may have it."""
    ids, batch = published(lease_until_ns=1_000_000_000, now_ms=1_000)
    assert ids == []
    assert isinstance(batch.answers[0], Failed)

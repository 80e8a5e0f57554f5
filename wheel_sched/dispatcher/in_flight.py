"""In-flight batches wait for their answers, and a drain waits for the in-flight batches.

Both wait in a purgatory on local monotonic time, which does not depend on the store's clock. A batch is a
`DelayedProduce` whose partitions are its items: it completes with the last answer, and expires at the publish timeout
with the answers it has. A drain is a `DelayedJoin` of the in-flight batches. Sans-I/O and without a thread: the owner
makes all calls.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

from wheel_sched.clock import Clock
from wheel_sched.dispatcher.publisher import Answer, Batch
from wheel_sched.purgatory import DelayedJoin, DelayedProduce, Joined, Purgatory
from wheel_sched.store.core.claim import Claim
from wheel_sched.timers.queue import DeadlineQueue, deadline_after
from wheel_sched.wheel import TimerTaskEntry

_DRAIN = "drain"


class OwnerTimer:
    """A timer for a purgatory. Its owner calls `run_due` at `next_ms`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._queue: DeadlineQueue[Callable[[], object]] = DeadlineQueue(clock.monotonic_ms())

    def schedule(self, delay_ms: int, callback: Callable[[], object]) -> TimerTaskEntry[Callable[[], object]]:
        """Call `callback` from `run_due` once `delay_ms` have passed."""
        return self._queue.schedule(callback, deadline_after(self._clock.monotonic_ns(), delay_ms))

    def next_ms(self) -> int | None:
        """When the next callback is due, in monotonic ms of the clock."""
        return self._queue.next_ms()

    def run_due(self) -> None:
        """Call the callbacks that are due."""
        for callback in self._queue.take(self._clock.monotonic_ms()):
            callback()


class BatchAnswers(DelayedProduce[int, Answer]):
    """Waits for the answers about a batch; the publisher puts each answer into the batch."""

    __slots__ = ("_answered", "batch")

    def __init__(self, batch: Batch, answered: Callable[[Batch], object], timeout_ms: int) -> None:
        super().__init__((), lambda _: None, timeout_ms=timeout_ms)
        self.batch = batch
        self._answered = answered

    def try_complete(self) -> bool:
        """See `DelayedOperation`."""
        return all(answer is not None for answer in self.batch.answers)

    def on_complete(self) -> None:
        """See `DelayedOperation`."""
        self.batch.over = True
        self._answered(self.batch)


class InFlightBatches:
    """The batches between the beginning of their publishing and their last answer.

    Args:
        clock: local time.
        publish_timeout_ms: see `DispatcherConfig`; None: a batch ends only when its publisher returns.
        answered: called once for each batch, when the batch must be settled.
        one_behind: whether the batches of a shard are published one after another. Defaults to False.
    """

    def __init__(
        self,
        clock: Clock,
        publish_timeout_ms: int | None,
        answered: Callable[[Batch], object],
        *,
        one_behind: bool = False,
    ) -> None:
        self.timer = OwnerTimer(clock)
        self.purgatory: Purgatory[Hashable] = Purgatory(self.timer, clock=clock)
        self._publish_timeout_ms = publish_timeout_ms
        self._answered = answered
        self._one_behind = one_behind
        self._waiting: dict[Batch, BatchAnswers] = {}
        self._more_due: set[int] = set()  # shards with more due items than their last claim brought
        self._drain: DelayedJoin[Batch] | None = None

    @property
    def unanswered(self) -> list[Batch]:
        """The batches that still wait for answers."""
        return list(self._waiting)

    def watch(self, batch: Batch) -> None:
        """Wait for the answers about a batch. It may have all answers already."""
        timeout_ms = self._publish_timeout_ms
        answers = self._waiting[batch] = BatchAnswers(batch, self._over, timeout_ms or 0)
        if timeout_ms is not None:
            self.purgatory.try_complete_else_watch(answers, (batch,))

    def claimed(self, claim: Claim, limit: int) -> None:
        """A claim of up to `limit` items was made."""
        (self._more_due.discard if len(claim.items) < limit else self._more_due.add)(claim.shard)

    def admits(self, shard: int) -> bool:
        """Whether another batch of a shard may be claimed.

        With `one_behind`, one more batch may wait behind the first, but only when a full batch is due. A smaller batch
        is claimed later, because it may grow until then.
        """
        if not self._one_behind:
            return True
        out = sum(batch.claim.shard == shard for batch in self._waiting)
        return out == 0 or (out == 1 and shard in self._more_due)

    def check(self, batch: Batch) -> None:
        """New answers about the batch have come: check whether it has all answers."""
        self.purgatory.check_and_complete(batch)

    def end(self, batch: Batch) -> None:
        """No more answers about the batch will come."""
        answers = self._waiting.get(batch)
        if answers is not None:
            answers.force_complete()

    def drain(self, batches: Iterable[Batch], timeout_ms: int, over: Callable[[Joined[Batch]], object]) -> None:
        """Call `over` when all of `batches` are settled, or at the timeout."""
        self._drain = DelayedJoin(batches, over, timeout_ms=timeout_ms)
        self.purgatory.try_complete_else_watch(self._drain, (_DRAIN,))

    def settled(self, batch: Batch) -> None:
        """A batch has ended in the store."""
        if self._drain is not None and self._drain.arrive(batch):
            self.purgatory.check_and_complete(_DRAIN)

    def _over(self, batch: Batch) -> None:
        del self._waiting[batch]
        self._answered(batch)

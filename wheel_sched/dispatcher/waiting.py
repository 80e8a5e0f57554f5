"""What the owner waits for besides the store: the answers about its batches, and the end of a drain.

Both wait in a purgatory on local monotonic time, which the store's clock cannot move: a batch is a `DelayedProduce`
whose partitions are its items, complete with the last answer, expired at the publish timeout with the answers there
are; a drain is a `DelayedJoin` of the batches that are out. Sans-I/O and without a thread: the owner calls everything.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

from wheel_sched.clock import Clock
from wheel_sched.dispatcher.batch import Answer, Batch
from wheel_sched.purgatory import DelayedJoin, DelayedProduce, Joined, Purgatory
from wheel_sched.store.items import Claim
from wheel_sched.timers.queue import DeadlineQueue, deadline_after
from wheel_sched.wheel import TimerTaskEntry

_DRAIN = "drain"


class OwnerTimer:
    """A purgatory's timer whose owner calls `run_due` at `next_ms`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._queue: DeadlineQueue[Callable[[], object]] = DeadlineQueue(clock.monotonic_ms())

    def schedule(self, delay_ms: int, callback: Callable[[], object]) -> TimerTaskEntry[Callable[[], object]]:
        """Call `callback` from `run_due` once `delay_ms` have passed."""
        return self._queue.schedule(callback, deadline_after(self._clock.monotonic_ns(), delay_ms))

    def next_ms(self) -> int | None:
        """When something is due next, by the clock's monotonic ms."""
        return self._queue.next_ms()

    def run_due(self) -> None:
        """Call what is due."""
        for callback in self._queue.take(self._clock.monotonic_ms()):
            callback()


class BatchAnswers(DelayedProduce[int, Answer]):
    """Waits for the answers about a batch; they are kept where publishers put them, in the batch."""

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


class Waiting:
    """The owner's purgatory.

    Args:
        clock: local time.
        publish_timeout_ms: see `DispatcherConfig`.
        answered: called with each batch that is to be settled now, once.
        in_order: whether the batches of a shard go out one after another. Defaults to False.
    """

    def __init__(
        self, clock: Clock, publish_timeout_ms: int, answered: Callable[[Batch], object], *, in_order: bool = False
    ) -> None:
        self.timer = OwnerTimer(clock)
        self.purgatory: Purgatory[Hashable] = Purgatory(self.timer, clock=clock)
        self._publish_timeout_ms = publish_timeout_ms
        self._answered = answered
        self._in_order = in_order
        self._out: dict[Batch, BatchAnswers] = {}  # those that are not over
        self._brimful: set[int] = set()  # shards in which more was due than their last claim brought
        self._drain: DelayedJoin[Batch] | None = None

    @property
    def out(self) -> list[Batch]:
        """The batches whose answers are waited for."""
        return list(self._out)

    def watch(self, batch: Batch) -> None:
        """A batch goes out, or has been answered already."""
        answers = BatchAnswers(batch, self._over, self._publish_timeout_ms)
        self._out[batch] = answers
        self.purgatory.try_complete_else_watch(answers, (batch,))

    def claimed(self, claim: Claim, limit: int) -> None:
        """A claim of up to `limit` items was made."""
        (self._brimful.discard if len(claim.items) < limit else self._brimful.add)(claim.shard)

    def admits(self, shard: int) -> bool:
        """Whether another batch of a shard may be claimed: in order, one may wait behind the one that goes out, when
        there is as much as a claim brings; a smaller one had better grow until then."""
        if not self._in_order:
            return True
        out = sum(batch.claim.shard == shard for batch in self._out)
        return out == 0 or (out == 1 and shard in self._brimful)

    def told(self, batch: Batch) -> None:
        """Answers about the batch have come in."""
        self.purgatory.check_and_complete(batch)

    def returned(self, batch: Batch) -> None:
        """No more answers about the batch will come."""
        answers = self._out.get(batch)
        if answers is not None:
            answers.force_complete()

    def drain(self, batches: Iterable[Batch], timeout_ms: int, over: Callable[[Joined[Batch]], object]) -> None:
        """Call `over` when all of `batches` are settled, or at the timeout."""
        self._drain = DelayedJoin(batches, over, timeout_ms=timeout_ms)
        self.purgatory.try_complete_else_watch(self._drain, (_DRAIN,))

    def settled(self, batch: Batch) -> None:
        """The store has settled a batch."""
        if self._drain is not None and self._drain.arrive(batch):
            self.purgatory.check_and_complete(_DRAIN)

    def _over(self, batch: Batch) -> None:
        del self._out[batch]
        self._answered(batch)

"""In-flight batches: from the claim of a batch until the store has answered that it is settled.

    hold ─► (ready) ─► watch ─► answers ─► settle_calls ─► settled

A batch waits for its answers as a `DelayedProduce` whose partitions are its items: it completes with the last answer,
and expires at the publish timeout with the answers it has, unless the publisher is transactional. Until a batch is
settled, an alarm extends its lease. A drain (an orderly stop) waits as a `DelayedJoin` until all batches are settled.
All these waits use local monotonic time, which does not depend on the store's clock. This module does no I/O except
for extending leases, and starts no thread: the owner loop makes all calls.

`Backoff` turns answers into settlements. An item that was not published waits, each time twice as long, or becomes a
dead letter.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial

from wheel_sched.clock import Clock
from wheel_sched.dispatcher.claim_source import ClaimSource
from wheel_sched.dispatcher.config import DispatcherConfig
from wheel_sched.dispatcher.publisher import Answer, Batch, Failed
from wheel_sched.dispatcher.statistics import DispatcherStats, report_settled
from wheel_sched.dispatcher.store_calls import Request
from wheel_sched.errors import Rejected
from wheel_sched.escaping import logger_of
from wheel_sched.purgatory import DelayedJoin, DelayedProduce, Joined, Purgatory
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.claim import Claim, Claimed
from wheel_sched.store.core.items import Outcome
from wheel_sched.store.core.settle import Dead, Done, Held, Next, Settle, Settled, Settlement, check_settlement
from wheel_sched.store.push import Pushed
from wheel_sched.store.recurring import Recur, SettleRecurring
from wheel_sched.timers.queue import DeadlineQueue, deadline_after
from wheel_sched.wheel import TimerTaskEntry

logger = logger_of("wheel_sched.dispatcher")

_DRAIN = "drain"
_REMEMBERED = 100_000
_UNANSWERED = Failed("no answer from the broker", in_doubt=True)


class OwnerTimer:
    """A timer on local time, without a thread. Its owner must call `run_due` at `next_ms`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._queue: DeadlineQueue[Callable[[], object]] = DeadlineQueue(clock.monotonic_ms())
        self._due: deque[Callable[[], object]] = deque()  # if a callback raises, those after it stay here

    def schedule(self, delay_ms: int, callback: Callable[[], object]) -> TimerTaskEntry[Callable[[], object]]:
        """Call `callback` from `run_due` once `delay_ms` have passed."""
        return self._queue.schedule(callback, deadline_after(self._clock.monotonic_ns(), delay_ms))

    def next_ms(self) -> int | None:
        """When the next callback is due, in monotonic ms of the clock; None when no callback waits."""
        return self._queue.next_ms()

    def run_due(self) -> None:
        """Call the callbacks that are due."""
        self._due += self._queue.take(self._clock.monotonic_ms())
        while self._due:
            self._due.popleft()()


class BatchAnswers(DelayedProduce[int, Answer]):
    """Waits until a batch has all its answers. The publisher puts each answer into the batch."""

    __slots__ = ("_answered", "batch")

    def __init__(self, batch: Batch, answered: Callable[[Batch], object], timeout_ms: int) -> None:
        super().__init__((), lambda _: None, timeout_ms=timeout_ms)
        self.batch = batch
        self._answered = answered

    def try_complete(self) -> bool:
        """Whether all answers are there."""
        return all(answer is not None for answer in self.batch.answers)

    def on_complete(self) -> None:
        """Mark the batch as over, and report it to `answered`."""
        self.batch.over = True
        self._answered(self.batch)


class InFlightBatches:
    """The batches that this dispatcher has claimed and not settled.

    Args:
        config: the dispatcher's settings.
        clock: local time.
        claim_source: extends leases, and says how a claim ends.
        stats: counts the items in flight and how they end.
        transactional: whether the publisher is transactional. Then the batches of a shard are published one after
            another, and a batch ends only when its publisher returns. Defaults to False.
        on_settled: see `Dispatcher`.

    Attributes:
        timer: runs publish timeouts and lease extensions.
        ready: batches that were not given to a publisher yet.
        answered: batches that must be settled.
    """

    def __init__(
        self,
        config: DispatcherConfig,
        clock: Clock,
        claim_source: ClaimSource,
        stats: DispatcherStats,
        *,
        transactional: bool = False,
        on_settled: Callable[[Claimed, Settlement, int], None] | None = None,
    ) -> None:
        self.timer = OwnerTimer(clock)
        self.purgatory: Purgatory[Hashable] = Purgatory(self.timer, clock=clock)
        self.ready: deque[Batch] = deque()
        self.answered: deque[Batch] = deque()
        self._config = config
        self._clock = clock
        self._claim_source = claim_source
        self._stats = stats
        self._backoff = Backoff(config, stats)
        self._transactional = transactional
        self._on_settled = on_settled
        self._held: dict[Batch, TimerTaskEntry[Callable[[], object]]] = {}  # batch -> alarm for its lease
        self._unanswered: dict[Batch, BatchAnswers] = {}
        self._settled_again: set[Batch] = set()  # batches that were settled a second time after a failed step
        self._more_due: set[int] = set()  # shards whose last claim was full, so more items may be due
        self._drain: DelayedJoin[Batch] | None = None

    def __len__(self) -> int:
        """How many batches are claimed and not settled."""
        return len(self._held)

    # -- claimed

    def claimed(self, claim: Claim, limit: int) -> None:
        """Note whether a claim is full (has `limit` items). After a full claim, the shard may have more due items."""
        (self._more_due.discard if len(claim.items) < limit else self._more_due.add)(claim.shard)

    def admits(self, shard: int) -> bool:
        """Whether another batch of a shard may be claimed.

        With a transactional publisher one more batch may wait behind the first, but only when a full batch is due. A
        smaller batch is claimed later, because it may grow until then.
        """
        if not self._transactional:
            return True
        out = sum(batch.claim.shard == shard for batch in self._unanswered)
        return out == 0 or (out == 1 and shard in self._more_due)

    def hold(self, batch: Batch, sent_us: int) -> None:
        """Keep a claimed batch, and extend its lease until it is settled.

        `sent_us`: when its claim was sent, in microseconds of local monotonic time.
        """
        batch.lease_until_ns = sent_us * 1000 + self._config.lease_ms * 1_000_000
        self._stats.in_flight += len(batch.items)
        self._extend_later(batch)

    def refused(
        self,
        pushed: Pushed,
        answers: Sequence[tuple[Claimed, Answer | None]],
        on_answered: Callable[[Batch], None],
        sent_us: int,
    ) -> None:
        """Keep items that the server could not push, each with the answer of `Publisher.refuse`.

        The publisher gets the items whose answer is None.
        """
        for for_worker in (False, True):
            chosen = [(item, answer) for item, answer in answers if (answer is None) is for_worker]
            if chosen:
                batch = Batch(pushed, [item for item, _ in chosen], on_answered=on_answered)
                batch.answers = [answer for _, answer in chosen]
                self.hold(batch, sent_us)
                if for_worker:
                    self.ready.append(batch)
                else:
                    self.watch(batch)

    def _extend_later(self, batch: Batch) -> None:
        self._held[batch] = self.timer.schedule(self._config.lease_ms // 3, partial(self._extend_lease, batch))

    def _extend_lease(self, batch: Batch) -> None:
        if batch not in self._held:
            return
        asked_ns = self._clock.monotonic_ns()
        self._extend_later(batch)
        if self._claim_source.extend(batch):
            batch.lease_until_ns = asked_ns + self._config.lease_ms * 1_000_000

    # -- published

    def watch(self, batch: Batch) -> None:
        """Begin to wait for the answers about a batch. The batch may have all answers already."""
        timeout_ms = self._config.publish_timeout_ms
        answers = self._unanswered[batch] = BatchAnswers(batch, self._answers_over, timeout_ms)
        if not self._transactional:
            self.purgatory.try_complete_else_watch(answers, (batch,))

    def check(self, batch: Batch) -> None:
        """Complete the wait for answers if the batch has all of them. Call this after new answers have come."""
        self.purgatory.check_and_complete(batch)

    def end(self, batch: Batch) -> None:
        """Let the batch be settled with the answers that it has, because no more will come."""
        answers = self._unanswered.get(batch)
        if answers is not None:
            answers.force_complete()

    def _answers_over(self, batch: Batch) -> None:
        del self._unanswered[batch]
        self.answered.append(batch)

    # -- settled

    def settle_calls(self, now_ms: int) -> tuple[list[Request], list[int]]:
        """The calls that settle the answered batches, and the shards of batches that cannot be settled.

        A batch cannot be settled when the claim source does not know whether the batch was published. Such a batch is
        forgotten, and its shard must be read again.
        """
        calls: list[Request] = []
        unknown: list[int] = []
        while self.answered:
            batch = self.answered.popleft()
            if batch.settling is None:
                answers = list(batch.answers)  # the publisher may still write, after its timeout
                batch.settlements = self._backoff.settlements(batch.items, answers, now_ms)
                to_settle = self._claim_source.to_settle(batch, batch.settlements)
                if to_settle is None:
                    unknown.append(batch.claim.shard)
                    self._forget(batch, [Outcome.STALE] * len(batch.items), 0)
                    continue
                recurs = any(isinstance(settlement, Recur) for settlement in to_settle)
                settle = SettleRecurring if recurs else Settle
                batch.settling = settle(batch.claim.number, to_settle, self._config.dead_cap)
            calls.append((Call(batch.claim.shard, batch.settling), batch))
        return calls, unknown

    def settled(self, batch: Batch, settled: Settled) -> None:
        """Handle the store's answer to the settlement of a batch."""
        outcomes = settled.outcomes if batch.ended_early is None else batch.outcomes_with(settled.outcomes)
        self._forget(batch, outcomes, settled.now_us)

    def _forget(self, batch: Batch, outcomes: Sequence[Outcome], now_us: int) -> None:
        self._end_lease(batch)
        if self._drain is not None and self._drain.arrive(batch):
            self.purgatory.check_and_complete(_DRAIN)
        settlements = batch.settlements or ()
        self._stats.settled(batch.items, settlements, outcomes, now_us)
        if self._on_settled is not None:
            report_settled(self._on_settled, zip(batch.items, settlements, outcomes, strict=True), now_us // 1000)

    def _end_lease(self, batch: Batch) -> None:
        alarm = self._held.pop(batch, None)
        if alarm is not None:
            alarm.cancel()

    def after_failure(self) -> None:
        """Repair the state after a step of the dispatcher's owner thread has failed and may have lost claimed batches.

        A lost batch that had its answers is settled again, but only once. The second call has the token (name) of the
        first, so the store settles nothing twice. All other lost batches are forgotten: their items wait again when the
        lease ends.
        """
        known = {*self.ready, *self.answered, *self._unanswered}
        lost = [batch for batch in self._held if batch not in known]
        again = [batch for batch in lost if batch.over and batch not in self._settled_again]
        for batch in lost:
            if batch not in again:
                self._end_lease(batch)
        self._settled_again = {batch for batch in self._settled_again if batch in self._held} | {*again}
        self.answered += again
        self._stats.in_flight = sum(len(batch.items) for batch in self._held)

    # -- drained

    def drain(self, timeout_ms: int, over: Callable[[Joined[Batch]], object]) -> None:
        """Call `over` when all batches are settled, or at the timeout."""
        self._drain = DelayedJoin(list(self._held), over, timeout_ms=timeout_ms)
        self.purgatory.try_complete_else_watch(self._drain, (_DRAIN,))

    def give_up(self, batches: Iterable[Batch]) -> None:
        """Settle these batches with the answers that they have, because the time of the drain is over.

        Batches that were not given to a publisher yet are not published.
        """
        for batch in batches:
            if batch in self.ready:
                batch.answers = [Failed("the dispatcher stopped before the item was published")] * len(batch.items)
                self.answered.append(batch)
            else:
                self.end(batch)
        self.ready.clear()


class Backoff:
    """Turns a publisher's answers into settlements.

    The failures of an item are counted here and not in the store. Usually the broker is their cause and not the item,
    and other dispatchers may reach the broker. The number of remembered items is bounded: the item whose last failure
    is the oldest is forgotten, and starts with the first delay again.
    """

    def __init__(self, config: DispatcherConfig, stats: DispatcherStats) -> None:
        self._config = config
        self._stats = stats
        self._failures: OrderedDict[str, int] = OrderedDict()

    def settlements(self, items: Sequence[Claimed], answers: Sequence[Answer | None], now_ms: int) -> list[Settlement]:
        """The settlements of the items of a batch."""
        if not self._failures:
            done = [a for item, a in zip(items, answers, strict=True) if type(a) is Done and a.id == item.id]
            if len(done) == len(items):  # the usual case
                return list[Settlement](done)
        pairs = list(zip(items, answers, strict=True))
        if logger.isEnabledFor(logging.WARNING):
            _report(pairs)
        return [self.settlement(item, answer, now_ms) for item, answer in pairs]

    def settlement(self, item: Claimed, answer: Answer | None, now_ms: int) -> Settlement:
        """The settlement of `item`. Without an answer (None) the item is in doubt, and is tried again after a delay."""
        if type(answer) is Done and answer.id == item.id:
            if self._failures:
                self._failures.pop(item.id, None)
            return answer
        if answer is None:
            answer = _UNANSWERED
        if not isinstance(answer, Failed):
            self._failures.pop(item.id, None)
            problem = _problem(item, answer)
            if problem is None:
                return answer
            reason = f"the publisher's answer cannot be carried out: {problem}"
            logger.warning("dispatcher.dead: item '%.100s' of topic '%.100s': %.200s", item.id, item.topic, reason)
            return Dead(item.id, reason)
        self._stats.failed += 1
        self._stats.in_doubt += answer.in_doubt
        if not answer.transient:
            self._failures.pop(item.id, None)
            return Dead(item.id, answer.reason)
        count = self._failures.pop(item.id, 0) + 1
        self._failures[item.id] = count
        if len(self._failures) > _REMEMBERED:
            self._failures.popitem(last=False)
        delay_ms = min(self._config.backoff_ms * 2 ** min(count - 1, 20), self._config.backoff_max_ms)
        return Next(item.id, now_ms + delay_ms)


def _report(pairs: Sequence[tuple[Claimed, Answer | None]]) -> None:
    """Log one line for each item that is given up, and one line for all items of the batch that are tried again."""
    failed = [(item, _UNANSWERED if answer is None else answer) for item, answer in pairs]
    again: list[tuple[Claimed, Failed]] = []
    for item, answer in failed:
        if isinstance(answer, Dead) or (isinstance(answer, Failed) and not answer.transient):
            logger.warning(
                "dispatcher.dead: item '%.100s' of topic '%.100s': %.200s", item.id, item.topic, answer.reason
            )
        elif isinstance(answer, Failed):
            again.append((item, answer))
    if again:
        item, first = again[0]
        logger.warning(
            "dispatcher.not_published: %d of %d items, tried again later; the first: item '%.100s' of topic '%.100s': "
            "%.200s",
            *(len(again), len(pairs), item.id, item.topic, first.reason),
        )


def _problem(item: Claimed, answer: object) -> str | None:
    """Why the store cannot settle `item` with this answer of the publisher; None: the store can."""
    if not isinstance(answer, Done | Next | Held | Dead):
        return f"expected Done, Next, Held, Dead or Failed, got: {answer!r}"
    if answer.id != item.id:
        return f"it is about {answer.id!r}"
    try:
        if isinstance(answer, Recur):
            answer.check()
        else:
            check_settlement(answer)
    except Rejected as error:
        return str(error)
    return None

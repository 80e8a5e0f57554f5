"""What becomes of deliveries once they were handled: acknowledged, or forwarded to the retry topic; and kept alive.

Invariant: a delivery is in flight from the moment it was read until the broker has confirmed that it is settled, and
while it is, its hold at the broker is renewed when a third of `idle_ms` has passed since it was read or renewed: a
`HeartbeatMonitor` says whose. What the broker refuses stays in flight and
is tried again with a growing delay: the runtime never forgets a message, it stops reading new ones.

Threads: handlers put outcomes, one thread of ours settles and beats, another one reads from the same broker consumer.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from retry_topic.brokers.protocol import Broker, BrokerConsumer, Delivery
from retry_topic.consumer.config import ConsumerStats
from retry_topic.consumer.successes import Successes
from retry_topic.history import Attempt, HistoryWriter
from retry_topic.message import Message
from wheel_sched.errors import BrokerError
from wheel_sched.escaping import logger_of
from wheel_sched.purgatory import HeartbeatMonitor

logger = logger_of("retry_topic.consumer")

AWAY_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_AT_ONCE = 200  # outcomes settled together, up to twice as many
_LAST_TRIES = 3  # how often a draining consumer tries a broker that is away; what is unsettled then comes again


@dataclass(slots=True)
class Outcome:
    """What is to become of a delivery: settled as it is, or forwarded. `success`: what the store is told of it."""

    delivery: Delivery
    ended: Literal["acknowledged", "retried", "dead", "parked"]
    forward: Message | None = None
    refusals: int = 0
    attempt: Attempt | None = None
    success: str | None = None


class Sink(Protocol):
    """Where outcomes go: to be settled, or to whom the order of keys matters first."""

    def put(self, outcome: Outcome) -> None:
        """Have an outcome settled. Any thread."""
        ...

    def put_all(self, outcomes: Sequence[Outcome]) -> None:
        """The same of several, in their order."""
        ...


class InFlight:
    """Deliveries that were read and are not settled yet, by where they were read. Any thread.

    Args:
        idle_ms: how soon the broker gives a silent consumer's deliveries to another.
        changed: told whenever some are settled; several may share one. Defaults to one of its own.
    """

    def __init__(self, idle_ms: int, changed: threading.Condition | None = None) -> None:
        renew_ms = max(1, idle_ms // 3)
        self._changed = changed or threading.Condition()
        self._held: dict[object, Delivery] = {}
        self._lapsing: list[object] = []
        # a tenth of slack, so that one call renews what was read in many
        self._holds: HeartbeatMonitor[object] = HeartbeatMonitor(
            renew_ms, self._lapsing.append, tick_ms=max(1, renew_ms // 10)
        )

    def __len__(self) -> int:
        return len(self._held)

    def add(self, delivery: Delivery) -> bool:
        """Take a delivery in; False when the same record is here already.

        That happens when the broker could not be told in time that it is worked on: the new handle is the one that
        settles it, and the handler that has it goes on.
        """
        key = _key(delivery)
        with self._changed:
            fresh = key not in self._held
            self._held[key] = delivery
            self._holds.add(key)
            return fresh

    def drop_all(self) -> None:
        """Forget all of them: they are handed to others."""
        with self._changed:
            left = list(self._held.values())
        self.remove(left)

    def current(self, delivery: Delivery) -> Delivery:
        """The delivery with the handle that was given last."""
        with self._changed:
            return self._held.get(_key(delivery), delivery)

    def remove(self, deliveries: Sequence[Delivery]) -> None:
        with self._changed:
            for delivery in deliveries:
                self._held.pop(_key(delivery), None)
                self._holds.remove(_key(delivery))
            self._changed.notify_all()

    def to_renew(self) -> list[Delivery]:
        """Whose holds are to be renewed now; each of them counts as renewed from here on. One thread."""
        self._holds.run_due()
        with self._changed:
            lapsing, self._lapsing[:] = list(self._lapsing), ()
            due = [(key, self._held[key]) for key in lapsing if key in self._held]
            for key, _ in due:
                self._holds.add(key)
            return [delivery for _, delivery in due]

    def next_renewal_s(self) -> float | None:
        """When `to_renew` will next have an answer, by `time.monotonic`; None when nothing is in flight."""
        next_ms = self._holds.next_ms()
        return None if next_ms is None else next_ms / 1000

    def room(self, limit: int, timeout_s: float) -> int:
        """How many more may be read; waits up to `timeout_s` for the first."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._held) < limit, timeout_s)
            return max(0, limit - len(self._held))

    def wait_until_at_most(self, count: int, timeout_s: float) -> bool:
        """Wait until no more than `count` are in flight; False at the timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._held) <= count, max(0.0, timeout_s))


def _key(delivery: Delivery) -> object:
    return delivery.message.source or id(delivery)


class Settler:
    """Settles outcomes and keeps what is in flight alive, in the one thread that calls `run`.

    Args:
        broker: to create a retry topic that somebody deleted.
        consumer: whose deliveries they are.
        in_flight: what was read.
        stats: where it counts.
        idle_ms: as `in_flight` has it.
        history: told of what went through after a failure. Defaults to none.
        successes: told of what has succeeded, before it is acknowledged. Defaults to none.
        in_order: what could not be settled keeps back what came after it, or a crash would let an earlier message of
            a key be handled again behind a later one. Defaults to False.
    """

    def __init__(
        self,
        broker: Broker,
        consumer: BrokerConsumer,
        in_flight: InFlight,
        stats: ConsumerStats,
        idle_ms: int,
        history: HistoryWriter | None = None,
        successes: Successes | None = None,
        *,
        in_order: bool = False,
    ) -> None:
        self._in_order = in_order
        self._broker = broker
        self._consumer = consumer
        self._in_flight = in_flight
        self._stats = stats
        self._history = history
        self._successes = successes
        self._look_s = idle_ms / 3000
        self._outcomes: queue.SimpleQueue[Sequence[Outcome]] = queue.SimpleQueue()
        self.finishing = threading.Event()
        self._again: list[Outcome] = []  # what could not be settled, tried again at `_again_at`
        self._again_at = 0.0
        self._failures = 0

    def put(self, outcome: Outcome) -> None:
        """Have an outcome settled. Any thread."""
        self._outcomes.put((outcome,))

    def put_all(self, outcomes: Sequence[Outcome]) -> None:
        """Have outcomes settled. Any thread."""
        for start in range(0, len(outcomes), _AT_ONCE):
            self._outcomes.put(outcomes[start : start + _AT_ONCE])

    def finish(self) -> None:
        """No more outcomes will come; `run` returns when what there is is settled, or cannot be."""
        self.finishing.set()
        self._outcomes.put(())

    def run(self) -> None:
        """The thread."""
        while True:
            until = time.monotonic() + self._look_s  # what is read meanwhile lapses later than that
            if (renewal_s := self._in_flight.next_renewal_s()) is not None:
                until = min(until, renewal_s)
            ready = self._collect(min(until, self._again_at) if self._again else until)
            if self._again and (time.monotonic() >= self._again_at or self.finishing.is_set()):
                ready, self._again = self._again + ready, []
            elif self._again and self._in_order:
                ready, self._again = [], self._again + ready
            if ready:
                self._settle(ready)
            self._beat()
            if self.finishing.is_set() and self._outcomes.empty():
                if not self._again or self._failures > _LAST_TRIES:
                    return
                time.sleep(AWAY_S[0])  # a draining consumer has nothing else to wait for

    def _collect(self, until: float) -> list[Outcome]:
        """Outcomes that are there; waits until then for the first."""
        taken: list[Outcome] = []
        with contextlib.suppress(queue.Empty):
            timeout_s = 0 if self.finishing.is_set() else max(0.0, until - time.monotonic())
            taken += self._outcomes.get(timeout=timeout_s)
            while len(taken) < _AT_ONCE:
                taken += self._outcomes.get_nowait()
        return taken

    def _settle(self, outcomes: list[Outcome]) -> None:
        left: list[Outcome] = []
        forwards = [outcome for outcome in outcomes if outcome.forward is not None]
        for settle, part in (
            (self._acknowledge, [outcome for outcome in outcomes if outcome.forward is None]),
            (self._forward, forwards),
        ):
            if not part:
                continue
            try:
                left += settle(part)
            except Exception as error:  # one broker's bug must not end the thread that keeps messages alive
                if not isinstance(error, BrokerError):
                    logger.exception("consumer.settling_failed")
                elif self._failures == 0:
                    logger.warning("consumer.cannot_settle: %s", error)
                left += part
        self._failures = self._failures + 1 if left else 0
        if left:
            self._again += left
            self._again_at = time.monotonic() + AWAY_S[min(self._failures, len(AWAY_S)) - 1]

    def _acknowledge(self, outcomes: list[Outcome]) -> list[Outcome]:
        if self._successes is not None:
            self._successes.tell([one.success for one in outcomes if one.success is not None])
        self._consumer.ack([self._in_flight.current(outcome.delivery) for outcome in outcomes])
        self._done(outcomes)
        return []

    def _forward(self, outcomes: list[Outcome]) -> list[Outcome]:
        """Forward; what the broker refused comes back, changed when it would be refused for ever."""
        pairs = [(self._in_flight.current(one.delivery), one.forward) for one in outcomes if one.forward is not None]
        answers = self._consumer.forward(pairs)
        done: list[Outcome] = []
        left: list[Outcome] = []
        for outcome, answer in zip(outcomes, answers, strict=True):
            if answer is None:
                done.append(outcome)
                continue
            if outcome.refusals == 0:
                logger.warning("consumer.retry_topic_refused: %s", answer.reason)
            if not answer.transient:
                self._refused(outcome)
            left.append(outcome)
        self._done(done)
        return left

    def _refused(self, outcome: Outcome) -> None:
        """Refused for good: the retry topic was deleted, or our headers are too many for the record.

        It is created again; and a record that came as it is can go as it is, without what we have to say about it.
        """
        outcome.refusals += 1
        if outcome.forward is None:
            return
        topic = outcome.forward.topic
        if outcome.refusals == 1:
            with contextlib.suppress(BrokerError):
                self._broker.create_topic(topic)
        else:
            outcome.forward = outcome.delivery.message.to(topic)

    def _done(self, outcomes: Sequence[Outcome]) -> None:
        stats = self._stats
        for outcome in outcomes:
            setattr(stats, outcome.ended, getattr(stats, outcome.ended) + 1)
        if self._history is not None and (rows := [one.attempt for one in outcomes if one.attempt is not None]):
            self._history.put(rows)
        self._in_flight.remove([outcome.delivery for outcome in outcomes])
        stats.in_flight = len(self._in_flight)

    def _beat(self) -> None:
        deliveries = self._in_flight.to_renew()
        if not deliveries:
            return
        try:
            self._consumer.beat(deliveries)
        except Exception as error:  # as above
            logger.warning("consumer.cannot_beat: %s", error)

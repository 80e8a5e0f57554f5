"""OrderedTopic: reads one topic for a group in the order of its keys; one consumer of the group reads, the others wait.

It is for brokers whose members compete for records. Competing readers cannot keep an order: they would handle two
messages of a key at the same time. So one consumer owns the topic under a lease in the store. The lease is three times
`idle_ms` long and is renewed six times in that time.

The next owner must first get the records that the last owner has not settled. The broker hands them out again, before
new records, when nobody called `beat` (keep alive) for them for `idle_ms`. So an owner that could not renew its lease
for 1.5 times `idle_ms` stops: it reads no more and calls no `beat`. Its lease expires 1.5 times `idle_ms` after that,
when the broker already hands out its records. A consumer that is stopped with nothing in flight releases its lease
immediately.

The lease ends by the store's clock. When that clock steps forward, or when the server has lost the lease, a consumer
may acquire the topic too early. So a consumer that has seen another owner also waits until that owner's lease has ended
by the waiting consumer's clock, unless the owner has released the lease.

When the reply of a poll is lost, the broker may have handed out records that no consumer received. The owner reads no
more, waits until the broker hands them out again, and releases the lease. The lost poll may reach the broker late. The
owner allows `idle_ms` for that, so it waits for twice `idle_ms`.

All consumers of the group read the redelivery topic: of each key, one message at a time is in flight (`key_heads`).
"""

from __future__ import annotations

import time
from collections.abc import Generator

from retry_topic.brokers.protocol import BrokerConsumer
from retry_topic.consumer.ordered.assignment import PartitionAssignment, ReaderContext, new_holder
from retry_topic.consumer.ordered.reader import READ_AHEAD, OrderedReader
from retry_topic.consumer.outcome import is_suspect
from wheel_sched.store.ordering import OrderedKeys, scope_of

_POLL_MS = 1_000  # how long an idle reader waits at the broker; only the reaction to `stop` depends on it
_STAND_BY_S = 1.0  # how soon a free topic is taken over; each check is one small command


class OrderedTopic(OrderedReader):
    """Reads one ordered topic while this consumer holds the topic's lease.

    Args:
        context: what to read and for which consumer.
    """

    def __init__(self, context: ReaderContext) -> None:
        super().__init__(context)
        self._locks = OrderedKeys(context.connection.store)
        self._scope = scope_of(context.group, context.topic)
        self._holder = new_holder()
        self._idle_s = context.config.idle_ms / 1000
        self._lease_s = 3 * self._idle_s
        self._taken_until = 0.0  # until then, by this process's clock, another consumer owns the topic

    def __repr__(self) -> str:
        state = "stopping" if self._stopping.is_set() else "running"
        return f"<OrderedTopic {self._context.topic} group={self._context.group} {state}>"

    def _read(self) -> Generator[None]:
        while True:
            asked = time.monotonic()
            owned = self._locks.acquire(self._scope, self._holder, int(self._lease_s * 1000))
            self._failures = 0
            if not owned.epoch:
                self._taken_until = asked + owned.for_ms / 1000 + 0.01
            elif owned.released:
                self._taken_until = 0.0
            if owned.epoch and asked >= self._taken_until:
                yield from self._read_as_owner(owned.epoch, asked)
            else:
                self._stopping.wait(min(self._taken_until - asked, self._lease_s / 8, _STAND_BY_S))
            yield

    def _read_as_owner(self, epoch: int, asked: float) -> Generator[None]:
        """Read until the lease is lost, or until the reply of a poll is lost."""
        self._in_doubt = False
        context = self._context
        consumer = context.connection.broker.consumer([context.topic], context.group, idle_ms=context.config.idle_ms)
        patience_s = 1.5 * self._idle_s
        assignment = PartitionAssignment(
            context, consumer, self._scope, self._holder, self._lease_s, patience_s=patience_s
        )
        try:
            assignment.begin(epoch, asked)
            yield from self._poll(consumer, assignment)
        finally:
            self._holder = new_holder()  # with the old name this reader would own the topic too early, see the module
            again_at = time.monotonic() + 2 * self._idle_s if self._in_doubt else 0.0
            empty = assignment.end(max(again_at, self._until))
            consumer.close()
            left_s = again_at - time.monotonic()
            if empty and (left_s <= 0 or not self._stopping.wait(left_s)):
                assignment.leave()
            else:
                self._taken_until = time.monotonic() + self._lease_s

    def _poll(self, consumer: BrokerConsumer, assignment: PartitionAssignment) -> Generator[None]:
        config = self._context.config
        careful = True  # as in `Consumer`: read one message at a time, because it may have killed the last process
        limit = config.concurrency * READ_AHEAD
        wait_ms = min(_POLL_MS, max(1, config.idle_ms // 4))
        while not assignment.lost.is_set() and not self._in_doubt:
            yield
            if time.monotonic() - assignment.renewed > self._idle_s:
                assignment.lost.wait(wait_ms / 1000)  # until the lease is renewed or lost
                continue
            room = assignment.in_flight.room(1 if careful else limit, timeout_s=wait_ms / 1000)
            if room == 0:
                continue
            deliveries = self._polled(consumer, room, wait_ms)
            if time.monotonic() - assignment.renewed > 2 * self._idle_s:
                assignment.lose()  # this process was suspended so long that another consumer may own the topic
                return
            for delivery in deliveries:
                assignment.add(delivery)
            if deliveries:
                careful = careful and any(is_suspect(one, config.crash_cap) for one in deliveries)

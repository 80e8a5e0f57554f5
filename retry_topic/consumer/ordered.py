"""OrderedTopic: reads one topic for a group, in the order of each key; of all consumers of the group one reads.

For brokers whose members compete for records; where they are given partitions, see `partitions`. Competing readers
could not keep an order: two messages of a key would be handled side by side. So a topic has an owner, under a lease in
the store, and the others stand by. The lease is three times `idle_ms` and is renewed twice in each; an owner that could
not renew it for one and a half lets go of what it has. So when a lease runs out, everything that its holder had read
and not settled has been silent for longer than `idle_ms`, and is handed out before anything new. An owner that stops
with empty hands gives the topic up at once.

What comes back on the redelivery topic is read by all consumers: of each key one message is out at a time (`heads`).
"""

from __future__ import annotations

import time

from retry_topic.brokers.protocol import BrokerConsumer
from retry_topic.consumer.reader import READ_AHEAD, OrderedReader
from retry_topic.consumer.term import Reading, Term, new_holder
from wheel_sched.store.key_gates import KeyGates, scope_of

_STAND_BY_S = 1.0  # how soon a topic that was given up is taken over; one small command a look


class OrderedTopic(OrderedReader):
    """One ordered topic of a consumer; see the module.

    Args:
        reading: what to read, and for whom.
    """

    def __init__(self, reading: Reading) -> None:
        super().__init__(reading)
        self._gates = KeyGates(reading.home.store)
        self._scope = scope_of(reading.group, reading.topic)
        self._holder = new_holder()
        self._idle_s = reading.config.idle_ms / 1000
        self._lease_s = 3 * self._idle_s

    def __repr__(self) -> str:
        state = "stopping" if self._stopping.is_set() else "running"
        return f"<OrderedTopic {self._reading.topic} group={self._reading.group} {state}>"

    def _turn(self) -> None:
        asked = time.monotonic()
        owned = self._gates.own(self._scope, self._holder, int(self._lease_s * 1000))
        self._failures = 0
        if owned.epoch:
            self._read(owned.epoch, asked)
        else:
            self._stopping.wait(min(owned.for_ms / 1000 + 0.01, self._lease_s / 8, _STAND_BY_S))

    def _read(self, epoch: int, asked: float) -> None:
        """One term as the topic's owner."""
        reading = self._reading
        consumer = reading.home.broker.consumer([reading.topic], reading.group, idle_ms=reading.config.idle_ms)
        term = Term(reading, consumer, self._scope, self._holder, self._lease_s, patience_s=1.5 * self._idle_s)
        empty = False
        try:
            term.begin(epoch, asked)
            self._poll(consumer, term)
        finally:
            empty = term.end(self._until)
            consumer.close()
        if empty:
            term.leave()

    def _poll(self, consumer: BrokerConsumer, term: Term) -> None:
        from retry_topic.consumer import runtime  # the patience of all readers stands there

        config = self._reading.config
        careful = True  # as in `Consumer`: what killed the process before this one comes alone
        limit = config.concurrency * READ_AHEAD
        wait_ms = min(runtime._POLL_MS, max(1, config.idle_ms // 4))
        while not self._stopping.is_set() and not term.lost.is_set():
            if time.monotonic() - term.renewed > self._idle_s:
                term.lost.wait(wait_ms / 1000)  # until it is renewed, or lost
                continue
            room = term.in_flight.room(1 if careful else limit, timeout_s=wait_ms / 1000)
            if room == 0:
                continue
            deliveries = self._polled(consumer, room, wait_ms)
            if time.monotonic() - term.renewed > 2 * self._idle_s:
                term.lose()  # we were stopped for so long that another may have begun
                return
            for delivery in deliveries:
                term.add(delivery)
            if deliveries:
                careful = careful and any(runtime.is_suspect(one, config.crash_cap) for one in deliveries)

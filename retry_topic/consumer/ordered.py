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

import logging
import secrets as random_bytes
import socket
import threading
import time
from typing import Protocol

from retry_topic.brokers.protocol import BrokerConsumer
from retry_topic.consumer.settling import AWAY_S
from retry_topic.consumer.term import Reading, Term
from wheel_sched.errors import BrokerError, StoreError
from wheel_sched.store.key_gates import KeyGates, scope_of

logger = logging.getLogger("retry_topic.consumer")

_STAND_BY_S = 1.0  # how soon a topic that was given up is taken over; one small command a look
READ_AHEAD = 16  # messages read per handler, so that a busy key leaves something to do for the others


class OrderedReader(Protocol):
    """Reads one topic in the order of its keys."""

    def start(self) -> None:
        """Begin to read, or to stand by."""
        ...

    def stop(self, until: float) -> None:
        """Read no more; what is being handled has until then (`time.monotonic`) to end. `join` waits for it."""
        ...

    def join(self, timeout_s: float) -> None:
        """Wait for the end."""
        ...


def new_holder() -> str:
    """A name to own scopes under that nobody else has."""
    return f"{socket.gethostname()[:60]}-{random_bytes.token_hex(8)}"


class OrderedTopic:
    """One ordered topic of a consumer; see `OrderedReader`.

    Args:
        reading: what to read, and for whom.
    """

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._gates = KeyGates(reading.home.store)
        self._scope = scope_of(reading.group, reading.topic)
        self._holder = new_holder()
        self._idle_s = reading.config.idle_ms / 1000
        self._lease_s = 3 * self._idle_s
        self._stopping = threading.Event()
        self._until = 0.0
        self._thread = threading.Thread(target=self._run, name=f"{reading.group}-read-{reading.topic}", daemon=True)

    def __repr__(self) -> str:
        state = "stopping" if self._stopping.is_set() else "running"
        return f"<OrderedTopic {self._reading.topic} group={self._reading.group} {state}>"

    def start(self) -> None:
        """See `OrderedReader`."""
        self._thread.start()

    def stop(self, until: float) -> None:
        """See `OrderedReader`."""
        self._until = until
        self._stopping.set()

    def join(self, timeout_s: float) -> None:
        """See `OrderedReader`."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                asked = time.monotonic()
                owned = self._gates.own(self._scope, self._holder, int(self._lease_s * 1000))
                failures = 0
                if owned.epoch:
                    self._read(owned.epoch, asked)
                else:
                    self._stopping.wait(min(owned.for_ms / 1000 + 0.01, self._lease_s / 8, _STAND_BY_S))
            except Exception as error:  # whatever it is, somebody has to read the topic
                if not isinstance(error, StoreError | BrokerError):
                    logger.exception("consumer.reading_failed")
                elif failures == 0:
                    logger.warning("consumer.away: %s", error)
                self._stopping.wait(AWAY_S[min(failures, len(AWAY_S) - 1)])
                failures += 1

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

        config, stats = self._reading.config, self._reading.stats
        careful = True  # as in `Consumer`: what killed the process before this one comes alone
        failures = 0
        limit = config.concurrency * READ_AHEAD
        wait_ms = min(runtime._POLL_MS, max(1, config.idle_ms // 4))
        while not self._stopping.is_set() and not term.lost.is_set():
            if time.monotonic() - term.renewed > self._idle_s:
                term.lost.wait(wait_ms / 1000)  # until it is renewed, or lost
                continue
            room = term.in_flight.room(1 if careful else limit, timeout_s=wait_ms / 1000)
            if room == 0:
                continue
            try:
                deliveries = consumer.poll(room, wait_ms)
                failures = 0
            except BrokerError as error:
                if failures == 0 and not self._stopping.is_set():
                    logger.warning("consumer.away: %s", error)
                self._stopping.wait(AWAY_S[min(failures, len(AWAY_S) - 1)])
                failures += 1
                continue
            if time.monotonic() - term.renewed > 2 * self._idle_s:
                term.lose()  # we were stopped for so long that another may have begun
                return
            stats.delivered += len(deliveries)
            for delivery in deliveries:
                term.add(delivery)
            if deliveries:
                careful = careful and any(runtime.is_suspect(one, config.crash_cap) for one in deliveries)

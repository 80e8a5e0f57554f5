"""OrderedPartitions: reads the partitions of one topic that a group's broker gives this member, each in order of keys.

A record's key decides its partition, and a partition is read by one member of the group at a time, so the order of a
key is kept by whoever has its partition; all consumers of the group share the work. Each partition has a term (`term`)
from when it comes until it goes, and a scope of its own. Its first records wait until the scope is ours: a member that
has lost the partition gives the scope up when it hears of it, one that died leaves a lease that ends with its
membership.

Around a rebalance the old and the new reader may both handle a record that was not settled; that is a repeat, and
breaks no order: neither begins what follows before it is through with it, and the store hears the newer one alone.
"""

from __future__ import annotations

import threading
import time

from retry_topic.brokers.protocol import PartitionedBroker, PartitionedConsumer
from retry_topic.consumer.reader import READ_AHEAD, OrderedReader
from retry_topic.consumer.term import Reading, Term, new_holder
from wheel_sched.escaping import logger_of
from wheel_sched.store.key_gates import scope_of

logger = logger_of("retry_topic.consumer")

_POLL_MS = 250  # how soon it is seen that a partition has gone, when nothing is read

Place = tuple[str, int]


class OrderedPartitions(OrderedReader):
    """One ordered topic of a consumer; see the module.

    Args:
        reading: what to read, and for whom.
        broker: the broker of its home, which gives partitions.
    """

    def __init__(self, reading: Reading, broker: PartitionedBroker) -> None:
        super().__init__(reading)
        self._broker = broker
        self._holder = new_holder()
        self._lease_s = reading.config.idle_ms / 1000
        self._terms: dict[Place, tuple[int, Term]] = {}
        self._last: dict[Place, int] = {}  # numbers of terms up to this are over
        self._settled = threading.Condition()
        self._careful = True

    def __repr__(self) -> str:
        state = "stopping" if self._stopping.is_set() else "running"
        return f"<OrderedPartitions {self._reading.topic} {sorted(part for _, part in self._terms)} {state}>"

    def _turn(self) -> None:
        """As a member of the group, until told to stop."""
        reading = self._reading
        consumer = self._broker.consumer([reading.topic], reading.group, idle_ms=reading.config.idle_ms)
        try:
            self._poll(consumer)
        finally:
            terms = [term for _, term in self._terms.values()]
            self._terms.clear()
            for term in terms:
                term.end(self._until)
            consumer.close()  # before the scopes are free: what is unsettled is read again by whoever owns them next
            for term in terms:
                term.leave()

    def _poll(self, consumer: PartitionedConsumer) -> None:
        from retry_topic.consumer import runtime  # what is suspect, all readers think the same of

        config = self._reading.config
        limit = config.concurrency * READ_AHEAD
        wait_ms = min(_POLL_MS, max(1, config.idle_ms // 4))
        while not self._stopping.is_set():
            self._follow(consumer)
            room = self._room(1 if self._careful else limit, wait_ms / 1000)
            if room == 0:
                continue
            deliveries = self._polled(consumer, room, wait_ms)
            if deliveries:
                suspect = any(runtime.is_suspect(one, config.crash_cap) for one in deliveries)
                self._careful = self._careful and suspect
            for delivery in deliveries:
                source, number = delivery.message.source, consumer.term_of(delivery)
                if source is not None:
                    term = self._term(consumer, (source.topic, source.partition), number)
                    if term is not None:  # else its term is over, it comes again in the next one
                        term.add(delivery)

    def _follow(self, consumer: PartitionedConsumer) -> None:
        """Begin and end terms as partitions come and go."""
        ours = consumer.terms()
        for place, (number, term) in list(self._terms.items()):
            if ours.get(place) != number:
                self._end(place)
            elif term.lost.is_set():
                # the store says so while the broker does not: both have to begin anew, or what was in hand would be
                # handed out behind what follows it
                logger.warning("consumer.scope_lost: %s partition %d is read anew", *place)
                for lost in list(self._terms):
                    self._end(lost)
                consumer.rejoin()
                return
        for place, number in ours.items():
            self._term(consumer, place, number)

    def _term(self, consumer: PartitionedConsumer, place: Place, number: int) -> Term | None:
        """The term of a partition, begun when it is a new one; None when it is over."""
        known = self._terms.get(place)
        if known is not None and known[0] == number:
            return known[1]
        if number <= self._last.get(place, 0):
            return None
        if known is not None:
            self._end(place)
        topic_id = self._broker.topic_id(self._reading.topic)  # each time: it may have been made anew
        self._last[place] = number
        self._careful = True  # its last reader may have died over a record of it
        term = Term(
            self._reading,
            consumer,
            scope_of(self._reading.group, topic_id, place[1]),
            f"{self._holder}-{number}",
            self._lease_s,
            topic_id=topic_id,
            changed=self._settled,
        )
        self._terms[place] = number, term
        term.begin_when_free()
        return term

    def _end(self, place: Place) -> None:
        """A partition has gone; the rest is done beside, so that the others go on."""
        _, term = self._terms.pop(place)
        term.lose()

        def end() -> None:
            term.leave()
            term.end(0.0)

        threading.Thread(target=end, name=f"{self._reading.group}-end-{place[1]}", daemon=True).start()

    def _room(self, limit: int, timeout_s: float) -> int:
        """How many more may be read in all; waits up to `timeout_s` for the first."""
        in_flights = [term.in_flight for _, term in self._terms.values()]
        until_s = time.monotonic() + timeout_s
        with self._settled:
            while (held := sum(map(len, in_flights))) >= limit and (left_s := until_s - time.monotonic()) > 0:
                self._settled.wait(left_s)
        return max(0, limit - held)

"""OrderedPartitions: reads the partitions of one topic that the broker assigns to this member, in the order of keys.

The key of a record decides its partition, and one member of the group at a time reads a partition. So the reader of the
partition keeps the order of the key, and all consumers of the group share the work. Each assigned partition has a
`PartitionAssignment` and a *scope*: the name under which the store keeps the locks of the partition's keys. The
partition's first records wait until this member owns the scope under a lease. A member that has lost the partition
gives up the scope as soon as it notices the loss. If a member died, its lease ends `idle_ms` after the last renewal.

During a rebalance the old and the new reader may both handle an unsettled record. That is a repeat and breaks no order:
neither reader begins a later record before that record has ended, and the store accepts only the newer reader.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator

from retry_topic.brokers.protocol import PartitionedBroker, PartitionedConsumer
from retry_topic.consumer.ordered.assignment import PartitionAssignment, ReaderContext, new_holder
from retry_topic.consumer.ordered.reader import READ_AHEAD, OrderedReader
from retry_topic.consumer.outcome import is_suspect
from wheel_sched.escaping import logger_of
from wheel_sched.store.ordering import scope_of

logger = logger_of("retry_topic.consumer")

_POLL_MS = 250  # how soon the reader notices a lost partition when no record comes

Place = tuple[str, int]


class OrderedPartitions(OrderedReader):
    """Reads one ordered topic for a consumer, in the partitions that the broker assigns to it; see the module.

    Args:
        context: what to read and for which consumer.
        broker: the broker, which assigns partitions.
    """

    def __init__(self, context: ReaderContext, broker: PartitionedBroker) -> None:
        super().__init__(context)
        self._broker = broker
        self._holder = new_holder()
        self._lease_s = context.config.idle_ms / 1000
        self._assignments: dict[Place, tuple[int, PartitionAssignment]] = {}
        self._last: dict[Place, int] = {}  # assignments with a number up to this one are over
        self._settled = threading.Condition()
        self._careful = True

    def __repr__(self) -> str:
        state = "stopping" if self._stopping.is_set() else "running"
        return f"<OrderedPartitions {self._context.topic} {sorted(part for _, part in self._assignments)} {state}>"

    def _read(self) -> Generator[None]:
        context = self._context
        consumer = self._broker.consumer([context.topic], context.group, idle_ms=context.config.idle_ms)
        self._holder = new_holder()  # each consumer numbers its assignments from one
        self._last.clear()
        try:
            yield from self._poll(consumer)
        finally:
            assignments = [assignment for _, assignment in self._assignments.values()]
            self._assignments.clear()
            for assignment in assignments:
                assignment.end(self._until)
            consumer.close()  # before the scopes are given up, because their next owners read unsettled records again
            for assignment in assignments:
                assignment.leave()

    def _poll(self, consumer: PartitionedConsumer) -> Generator[None]:
        config = self._context.config
        limit = config.concurrency * READ_AHEAD
        wait_ms = min(_POLL_MS, max(1, config.idle_ms // 4))
        while True:
            yield
            self._follow(consumer)
            room = self._room(1 if self._careful else limit, wait_ms / 1000)
            if room == 0:
                continue
            deliveries = self._polled(consumer, room, wait_ms)
            if deliveries:
                suspect = any(is_suspect(one, config.crash_cap) for one in deliveries)
                self._careful = self._careful and suspect
            for delivery in deliveries:
                source, number = delivery.message.source, consumer.assignment_of(delivery)
                if source is not None:
                    assignment = self._assignment(consumer, (source.topic, source.partition), number)
                    if assignment is not None:  # None: it is over, and the next assignment gets the delivery
                        assignment.add(delivery)

    def _follow(self, consumer: PartitionedConsumer) -> None:
        """Begin an assignment for each newly assigned partition. End the assignments of lost partitions."""
        ours = consumer.assignments()
        for place, (number, assignment) in list(self._assignments.items()):
            if ours.get(place) != number:
                self._end(place)
            elif assignment.lost.is_set():
                # The partition is lost in the store but not at the broker. Both must begin again. Otherwise
                # records in flight would be handed out after later ones.
                logger.warning("consumer.scope_lost: %s partition %d is read again", *place)
                for lost in list(self._assignments):
                    self._end(lost)
                consumer.rejoin()
                return
        for place, number in ours.items():
            self._assignment(consumer, place, number)

    def _assignment(self, consumer: PartitionedConsumer, place: Place, number: int) -> PartitionAssignment | None:
        """The assignment with this number. If the number is new, the assignment begins now. None if it is over."""
        known = self._assignments.get(place)
        if known is not None and known[0] == number:
            return known[1]
        if number <= self._last.get(place, 0):
            return None
        if known is not None:
            self._end(place)
        topic_id = self._broker.topic_id(self._context.topic)  # each time: the topic may have been recreated
        self._last[place] = number
        self._careful = True  # the partition's last reader may have died over one of its records
        assignment = PartitionAssignment(
            self._context,
            consumer,
            scope_of(self._context.group, topic_id, place[1]),
            f"{self._holder}-{number}",
            self._lease_s,
            topic_id=topic_id,
            changed=self._settled,
        )
        self._assignments[place] = number, assignment
        assignment.begin_when_free()
        return assignment

    def _end(self, place: Place) -> None:
        """End a lost partition's assignment. Another thread finishes it, so that the other partitions continue."""
        _, assignment = self._assignments.pop(place)
        assignment.lose()

        def end() -> None:
            assignment.leave()
            assignment.end(0.0)

        threading.Thread(target=end, name=f"{self._context.group}-end-{place[1]}", daemon=True).start()

    def _room(self, limit: int, timeout_s: float) -> int:
        """How many more deliveries may be read in all. Waits up to `timeout_s` until the number is at least one."""
        in_flights = [assignment.in_flight for _, assignment in self._assignments.values()]
        until_s = time.monotonic() + timeout_s
        with self._settled:
            while (held := sum(map(len, in_flights))) >= limit and (left_s := until_s - time.monotonic()) > 0:
                self._settled.wait(left_s)
        return max(0, limit - held)

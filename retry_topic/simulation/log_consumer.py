"""The consumer with which one simulated process reads the log broker.

`RemoteLogConsumer` does what `KafkaConsumer` does, with the product's own offset tracker and topic ids. The simulated
server does the work of the cluster and of the background threads of the real client library. The module `log_reader`
has the other kind of group member: it stores no positions, because the intake that uses it stores them.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

from confluent_kafka import TopicPartition

from retry_topic.brokers.kafka.offset_tracker import HeldRecord, OffsetTracker
from retry_topic.brokers.kafka.topology import TopicIds
from retry_topic.brokers.protocol import BrokerInDoubt, Delivery, Fenced, PublishFailure
from retry_topic.message import Message
from retry_topic.simulation.group_member import GroupMember
from retry_topic.simulation.log_server import Committed, Expelled, LogServer, Place
from wheel_sched.errors import BrokerError, BrokerUnavailable
from wheel_sched.simulation.calls import once
from wheel_sched.simulation.world import World

T = TypeVar("T")


class _TopicIdCalls:
    """The part of `Topology` that the product's `TopicIds` calls, for the simulated cluster."""

    def __init__(self, ask: Callable[[str], str]) -> None:
        self.topic_id = ask

    def ask_id(self, topic: str) -> Callable[[], str]:
        """Ask for a topic's id and wait for the reply. Returns a function that gives the id or raises the error."""
        try:
            found = self.topic_id(topic)
        except BrokerError as error:
            failure = error

            def fail() -> str:
                raise failure

            return fail
        return lambda: found

    @staticmethod
    def answered_id(topic: str, asked: Callable[[], str]) -> str:
        """Return the id that `ask_id` got, or raise the error that `ask_id` got."""
        return asked()


class RemoteLogConsumer(GroupMember):
    """A member that settles records one by one. Implements `PartitionedConsumer`, as `KafkaConsumer` does."""

    def __init__(
        self,
        world: World,
        server: LogServer,
        topics: tuple[str, ...],
        group: str,
        idle_ms: int,
        name: Callable[[], str],
    ) -> None:
        self._tracker = OffsetTracker(idle_ms, _now_ms)
        self._ids = TopicIds(cast("Any", _TopicIdCalls(self._id_of)))
        self._numbers: dict[Place, int] = {}  # the number of the assignment of each partition
        self._next: dict[Place, int] = {}  # the offset to fetch next
        self._sequence = 0
        self._alive_ms, self._polling = _now_ms(), 0  # last use by a caller, and running calls of `poll`
        self._committing = threading.Lock()  # one commit or transaction at a time
        self._transactional_id, self._epoch = f"{group}-{name()}", -1  # -1: there is no producer
        super().__init__(world, server, topics, group, idle_ms, name)

    def poll(self, limit: int, timeout_ms: int) -> list[Delivery]:
        """Up to `limit` deliveries. A poll that finds nothing does not call the server, so no fault strikes it."""
        self._polling += 1
        try:
            return self._poll(limit, timeout_ms)
        finally:
            self._polling -= 1
            self._alive_ms = _now_ms()

    def _poll(self, limit: int, timeout_ms: int) -> list[Delivery]:
        lapse_ms = self._tracker.lapse_in_s() * 1_000
        if limit > 0 and not self._server.wait_until(self._readable, min(timeout_ms, lapse_ms)):
            return []
        self._join()
        if limit < 1 or self._made_anew():
            return []
        member = self._member
        for _ in range(2):  # the first round looks new partitions up, and the second one reads them
            positions = dict(self._next)
            (ours, found), seen = self._call(
                "poll",
                lambda: (self._server.fetch(self._group, member, positions, limit), self._seen()),  # noqa: B023
            )
            if member != self._member:
                return []
            self._assigned_then = seen
            self._drop([place for place, number in self._numbers.items() if ours.get(place) != number])
            for place, offset, message in found:
                if self._next.get(place, -1) == positions[place]:
                    self._tracker.fetch(offset, message)
                    positions[place] = self._next[place] = offset + 1
            for place in {place for place, _, _ in found} & {*self._next}:
                self._next[place] = self._next.pop(place)  # to the end of the dict, so that no partition waits for ever
            gained = {place: number for place, number in ours.items() if place not in self._numbers}
            if not gained or not self._assigned(gained):
                break
        return self._hand_out(limit)

    def _readable(self) -> bool:
        """Whether a poll has work, such as new records, a new assignment, or records unsettled for too long."""
        if self._closed.is_set() or not self._joined() or self._tracker.fetched:
            return True
        topics, oldest_ms = self._server.topics, _now_ms() - self._idle_ms
        for (topic, number), at in self._next.items():
            if len(topics[topic].logs[number]) > at or topics[topic].id != self._ids.of(topic):
                return True
        return any(not held.settled and held.since_ms <= oldest_ms for held in self._held())

    def _held(self) -> Iterator[HeldRecord]:
        for offsets in self._tracker.partitions.values():
            yield from offsets.entries.values()

    def _made_anew(self) -> bool:
        """Join again if a topic of this member was deleted and created again. Returns whether that has happened.

        The real client asks the cluster about this once a second.
        """
        held = {topic for topic, _ in self._numbers}
        if all(self._server.topics[topic].id == self._ids.of(topic) for topic in held):
            return False
        if self._ids.changed(self._ids.look_up(sorted(held)), held):
            self.rejoin()
        return True

    def _assigned(self, gained: Mapping[Place, int]) -> bool:
        """Start to read new partitions, from the offsets that the group has committed.

        Returns False if a topic was deleted and created again. The next poll then joins the group again.
        """
        places = [*gained]
        try:
            found = self._ids.look_up(sorted({topic for topic, _ in places}))
            known = self._call("offsets", lambda: self._server.committed(self._group, places))
        except BrokerError:
            self.rejoin()
            raise
        if self._ids.changed(found, [topic for topic, _ in self._numbers]):
            self.rejoin()
            return False
        self._ids.take(found)
        own = self._ids.own(
            TopicPartition(*place, offset, text) for place, (offset, text) in zip(places, known, strict=True)
        )
        for place, number in gained.items():
            offset, text = own.get(place, (0, ""))
            self._tracker.open(place, max(0, offset), text)
            self._numbers[place], self._next[place] = number, max(0, offset)
        return True

    def _hand_out(self, limit: int) -> list[Delivery]:
        taken, life = self._tracker.take(limit), self._tracker.life
        if not taken:
            return []
        try:
            asked = self._ids.ask(sorted({delivery.handle[1] for delivery in taken}))
            if self._commit({delivery.handle[1:3] for delivery in taken}):
                if self._ids.same(asked):
                    return taken
                self.rejoin(life)  # the records and the offsets may belong to different logs
        except BrokerError:
            self._tracker.give_back(taken)
            raise
        return []

    def _rows(self, places: set[Place], *, counted: bool = True) -> dict[Place, Committed]:
        marked = self._ids.marked(self._tracker.to_commit(places, counted=counted))
        self._sequence += 1
        return {
            (one.topic, one.partition): Committed(
                self._numbers[one.topic, one.partition], self._sequence, one.offset, one.metadata or ""
            )
            for one in marked
        }

    def _commit(self, places: set[Place], *, counted: bool = True) -> bool:
        """Commit the offsets of these partitions. `counted`: see `OffsetTracker.to_commit`.

        Returns False if there are no offsets, or if the group has expelled the member.
        """
        with self._committing:
            rows, member = self._rows(places, counted=counted), self._member
            if not rows:
                return False
            try:
                self._call("commit", lambda: self._server.commit(self._group, member, rows))
            except Expelled:
                if member == self._member:
                    self.rejoin()
                return False
            self._tracker.forget_settled(places)
            return True

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Settle deliveries and commit their offsets. Implements `BrokerConsumer.ack`."""
        self._alive_ms = _now_ms()
        moved: set[Place] = set()
        for delivery in deliveries:
            held = self._tracker.held(delivery)
            if held is not None:  # a settled record too: its commit may have failed
                held.settled = True
                moved.add(delivery.handle[1:3])
        if moved:
            self._commit(moved)

    def forward(self, pairs: Sequence[tuple[Delivery, Message]]) -> list[PublishFailure | None]:
        """Publish messages and settle their deliveries. One transaction has all pairs that the broker accepts."""
        self.beat([delivery for delivery, _ in pairs])
        answers: list[PublishFailure | None] = [None] * len(pairs)
        left = list(range(len(pairs)))
        while left:
            failures = self._in_transaction([pairs[index] for index in left])
            for index, failure in zip(left, failures, strict=True):
                answers[index] = failure
            if not any(failures):
                break
            left = [index for index in left if answers[index] is None]
        return answers

    def _in_transaction(self, pairs: Sequence[tuple[Delivery, Message]]) -> list[PublishFailure | None]:
        with self._committing:
            answers: list[PublishFailure | None] = [None] * len(pairs)
            chosen = [
                index
                for index, (delivery, _) in enumerate(pairs)
                if (held := self._tracker.held(delivery)) is not None and not held.settled
            ]
            if not chosen:
                return answers
            life, handles = self._tracker.life, [pairs[index][0].handle for index in chosen]
            for _, topic, partition, offset in handles:
                self._tracker.partitions[topic, partition].settle(offset)
            rows, done = self._rows({handle[1:3] for handle in handles}), False
            try:
                failures = self._send(rows, [pairs[index][1] for index in chosen], life)
                done = not any(failures)
                for index, failure in zip(chosen, failures, strict=True):
                    answers[index] = failure
            finally:
                for assignment, topic, partition, offset in handles:
                    known = self._tracker.partitions.get((topic, partition)) if life == self._tracker.life else None
                    if known is not None and known.assignment == assignment and not done:
                        known.unsettle(offset)
                    elif known is not None and known.assignment == assignment:
                        known.forget_settled()
            return answers

    def _send(
        self, rows: Mapping[Place, Committed], messages: Sequence[Message], life: int
    ) -> list[PublishFailure | None]:
        """Send messages and offsets in one transaction.

        After a lost reply the member joins again. Then the committed offsets show whether the transaction succeeded.
        """
        if self._epoch < 0:
            self._revive()
        member, producer = self._member, (self._transactional_id, self._epoch)
        try:
            return self._call(
                "forward", once(lambda: self._server.send_forwards(producer, self._group, member, rows, messages))
            )
        except Fenced:
            self._epoch = -1
            raise
        except Expelled:
            self.rejoin(life)
            raise BrokerUnavailable("the group has expelled this member: nothing was sent") from None
        except BrokerInDoubt:
            self._epoch = -1
            with contextlib.suppress(BrokerError):
                self._revive()  # the new producer ends the old one's transaction
            self.rejoin(life)
            raise

    def _revive(self) -> None:
        name = self._transactional_id
        self._epoch = self._call("init producer", lambda: self._server.begin_producer(name))

    def beat(self, deliveries: Sequence[Delivery]) -> None:
        """Report that deliveries are still being handled. Implements `BrokerConsumer.beat`."""
        if deliveries:
            self._alive_ms = _now_ms()
        for delivery in deliveries:
            held = self._tracker.held(delivery)
            if held is not None:
                held.since_ms = _now_ms()

    def assignments(self) -> dict[Place, int]:
        """For each partition of this member, the assignment's number. Implements `PartitionedConsumer.assignments`."""
        return {place: offsets.assignment for place, offsets in self._tracker.partitions.items()}

    def assignment_of(self, delivery: Delivery) -> int:
        """The number of the assignment in which a delivery was handed out."""
        return int(delivery.handle[0])

    def topic_id_of(self, delivery: Delivery) -> str:
        """The permanent id of the topic that a delivery was read from."""
        return self._ids.of(delivery.handle[1])

    def rejoin(self, life: int | None = None) -> None:
        """Leave the group; the next poll joins it again.

        `life`: the number of a life (a stay in the group). After its end, do nothing. Defaults to the present life.
        """
        if life is None or life == self._tracker.life:
            self._tracker.begin()
            self._numbers.clear()
            self._next.clear()
            self._leave()

    def _beat_once(self) -> None:
        """Send a heartbeat, or leave the group if no caller has used this member for `idle_ms`.

        After the member has left, other members get its records.
        """
        if not self._polling and self._tracker.partitions and _now_ms() - self._alive_ms > self._idle_ms:
            with contextlib.suppress(BrokerUnavailable):
                self._commit({*self._numbers})
            self.rejoin()
        else:
            super()._beat_once()

    def _expelled(self) -> None:
        """Drop all deliveries, because the group has expelled this member. The next poll joins again."""
        self.rejoin()

    def _revoked(self, places: Sequence[Place]) -> None:
        """Commit the settled offsets, and forget the partitions."""
        with contextlib.suppress(BrokerUnavailable):
            self._commit(set(places) & {*self._numbers}, counted=False)
        self._drop(places)

    def _drop(self, places: Sequence[Place]) -> None:
        self._tracker.drop(places)
        for place in places:
            self._numbers.pop(place, None)
            self._next.pop(place, None)

    def close(self) -> None:
        """Commit the settled offsets and leave the group. Implements `BrokerConsumer.close`."""
        if not self._closed.is_set():
            self._closed.set()
            with contextlib.suppress(BrokerUnavailable):
                self._commit({*self._numbers}, counted=False)
            self._leave()


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000

"""KafkaConsumer: one member of a Kafka consumer group that settles records one by one, in any order.

It has two parts. The poll loop (`poll_loop`) owns the client and fills a buffer, in its own thread. The offset tracker
(`offset_tracker`) knows which records were handed out and which are settled. Callers use the class of this module:
`poll` takes records from the buffer, `ack` and `forward` settle them.

Before `poll` hands out a record, it commits a higher delivery count in the metadata of the committed offset. So the
count rises even if the consumer dies. `ack` and `forward` commit the new offset. Only one commit runs at a time, so an
older commit never replaces a newer one. When the member loses a partition, its deliveries of that partition are no
longer valid: settling them does nothing.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException

from retry_topic.brokers.kafka.faults import EXPELLED, MemberExpelled, broker_error, error_of
from retry_topic.brokers.kafka.offset_tracker import Place
from retry_topic.brokers.kafka.poll_loop import POLL_S, Committed, PollLoop, now_ms
from retry_topic.brokers.kafka.topology import TopicIds
from retry_topic.brokers.kafka.transactions import Transactions
from retry_topic.brokers.protocol import BrokerInDoubt, Delivery, PublishFailure
from retry_topic.message import Message
from wheel_sched.errors import BrokerError, BrokerUnavailable
from wheel_sched.escaping import logger_of

logger = logger_of("retry_topic.kafka")

_COMMIT_S = 10.0

Publish = Callable[[Sequence[Message]], list[PublishFailure | None]]


class KafkaConsumer:
    """A member of a consumer group, made by `KafkaBroker.consumer`.

    Args:
        settings: librdkafka's settings of a group member.
        topics: the topics that the member reads.
        idle_ms: see `Broker.consumer`.
        transactions: the transactions of `forward`. None: `forward` publishes first and settles afterwards.
        publish: the broker's `publish`.
        committed: reads the group's committed offsets, with their metadata.
        placed: gives each message a partition and a time that its topic accepts.
        topic_ids: tells whether a topic was recreated.
        full_bytes: the size of the buffer at which fetching pauses.
        connect: makes a client from the settings. Defaults to confluent-kafka's `Consumer`.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        topics: Sequence[str],
        idle_ms: int,
        transactions: Transactions | None,
        publish: Publish,
        committed: Committed,
        placed: Callable[[Sequence[Message]], list[Message]],
        topic_ids: TopicIds,
        full_bytes: int,
        connect: Callable[[dict[str, Any]], Any] = Consumer,
    ) -> None:
        self._topic_ids = topic_ids
        self._placed = placed
        self._group = str(settings["group.id"])
        self._transactions = transactions
        self._publish = publish
        self._committing = threading.Lock()  # one commit or transaction of the callers at a time
        self._loop = PollLoop(
            lambda: connect(dict(settings)), self._group, topics, idle_ms, committed, topic_ids, full_bytes
        )
        self._changed = self._loop.changed
        self._tracker = self._loop.tracker
        self._loop.start()

    def __repr__(self) -> str:
        with self._changed:
            return f"<KafkaConsumer {self._group} {self._tracker!r}>"

    def poll(self, limit: int, timeout_ms: int) -> list[Delivery]:
        """Up to `limit` deliveries; those without a `beat` for `idle_ms` come first. Waits up to `timeout_ms`.

        Raises:
            BrokerUnavailable: the cluster does not answer, or this consumer was closed. No record was handed out.
            BrokerError: the cluster refuses this client.
        """
        until_s = time.monotonic() + timeout_ms / 1000
        with self._changed:
            self._loop.polling += 1
            self._changed.notify_all()
        try:
            while True:
                with self._changed:
                    if self._loop.closed:
                        raise BrokerUnavailable("this consumer was closed: nothing was read")
                    self._loop.alive_ms = now_ms()
                    taken, life = self._tracker.take(limit), self._tracker.life
                    if not taken:
                        failure, self._loop.failure = self._loop.failure, None
                        if failure is not None:
                            if isinstance(failure, BrokerError):
                                raise failure
                            raise broker_error(failure, f"reading as group {self._group!r}")
                        left_s = until_s - time.monotonic()
                        if left_s <= 0 or limit < 1:
                            return []
                        self._changed.wait(min(left_s, self._tracker.lapse_in_s()))
                        continue
                try:
                    asked = self._topic_ids.ask({delivery.handle[1] for delivery in taken})
                    if self._commit({delivery.handle[1:3] for delivery in taken}):
                        if self._topic_ids.same(asked):
                            return taken
                        # the records and the offsets may belong to different logs
                        logger.warning("kafka.topic_recreated: group %s joins again", self._group)
                        self._loop.rejoin(life)
                except BrokerError:
                    with self._changed:
                        self._tracker.give_back(taken)
                    raise
        finally:
            with self._changed:
                self._loop.polling -= 1
                self._loop.alive_ms = now_ms()

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Settle deliveries and commit their offsets. Repeating the call is harmless.

        Raises:
            BrokerUnavailable: the deliveries are settled in this member, but the commit failed. If the process crashes
                now, they are handed out again.
        """
        with self._changed:
            self._loop.alive_ms = now_ms()
            moved: set[Place] = set()
            for delivery in deliveries:
                held = self._tracker.held(delivery)
                if held is not None:  # also when the record is already settled: the commit may have failed
                    held.settled = True
                    moved.add(delivery.handle[1:3])
        if moved:
            self._commit(moved)

    def forward(self, pairs: Sequence[tuple[Delivery, Message]]) -> list[PublishFailure | None]:
        """Publish each message and settle its delivery, in one transaction unless the broker uses none.

        Returns one answer for each pair: None when done, else why the message was not published.

        Raises:
            BrokerUnavailable: the result is not known. Deliveries that were not settled come again.
        """
        self.beat([delivery for delivery, _ in pairs])
        if self._transactions is None:
            return self._publish_and_settle(pairs)
        answers: list[PublishFailure | None] = [None] * len(pairs)
        left = list(range(len(pairs)))
        while left:
            failures = self._forward(self._transactions, [pairs[index] for index in left])
            for index, failure in zip(left, failures, strict=True):
                answers[index] = failure
            if not any(failures):
                break
            left = [index for index in left if answers[index] is None]
        return answers

    def beat(self, deliveries: Sequence[Delivery]) -> None:
        """Keep these deliveries alive, and this member in its group.

        Deliveries of a lost partition cannot be kept, but they too show that this member still works. If it left the
        group because of long handlers, others would lose their partitions, and might leave for the same reason.
        """
        at_ms = now_ms()
        with self._changed:
            if deliveries:
                self._loop.alive_ms = at_ms
            for delivery in deliveries:
                held = self._tracker.held(delivery)
                if held is not None:
                    held.since_ms = at_ms

    def assignments(self) -> dict[Place, int]:
        """For each present partition of this member: the number of its assignment. Any thread may call this."""
        with self._changed:
            return {place: offsets.assignment for place, offsets in self._tracker.partitions.items()}

    def assignment_of(self, delivery: Delivery) -> int:
        """The number of the assignment in which a delivery was handed out."""
        return int(delivery.handle[0])

    def topic_id_of(self, delivery: Delivery) -> str:
        """The permanent id of the topic that a delivery was read from."""
        return self._topic_ids.of(delivery.handle[1])

    def rejoin(self) -> None:
        """Leave the group and join it again. All deliveries of this member become invalid. Any thread may call it."""
        self._loop.rejoin()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._loop.closed

    def close(self) -> None:
        """Leave the group immediately. Unsettled records go to other members. Idempotent."""
        self._loop.close()
        if self._transactions is not None:
            self._transactions.close()

    # -- commits

    def _commit(self, places: set[Place]) -> bool:
        """Commit the offsets of these partitions. Returns False if the member has lost them or was expelled.

        Raises:
            BrokerUnavailable: the cluster does not answer. All records stay in flight.
        """
        until_s = time.monotonic() + _COMMIT_S
        while True:
            try:
                return self._commit_once(places)
            except KafkaException as error:
                code = error_of(error).code()
                if code in EXPELLED:
                    return False
                if code != KafkaError.REBALANCE_IN_PROGRESS or time.monotonic() >= until_s:
                    raise broker_error(error, "offsets could not be committed", writes=True) from error
            time.sleep(POLL_S)  # without the lock: the poll loop must go on with the rebalance

    def _commit_once(self, places: set[Place]) -> bool:
        with self._committing:
            return bool(self._loop.run_in_loop(lambda client: self._commit_here(client, places)))

    def _commit_here(self, client: Any, places: set[Place]) -> bool:
        """Commit the offsets. Call this only in the thread of the poll loop."""
        with self._changed:
            offsets = self._topic_ids.marked(self._tracker.to_commit(places))
        if not offsets:
            return False
        try:
            client.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            if error_of(error).code() in EXPELLED:
                self._loop.rejoin()
            raise
        with self._changed:
            self._tracker.forget_settled(places)
        return True

    def _forward(
        self, transactions: Transactions, pairs: Sequence[tuple[Delivery, Message]]
    ) -> list[PublishFailure | None]:
        """Forward all pairs in one transaction, or none.

        Returns one answer for each pair. All None: done, or the member no longer holds the deliveries. Otherwise
        nothing was forwarded, and each message at fault has its failure.
        """
        until_s = time.monotonic() + _COMMIT_S
        while True:
            with self._committing:
                asked = self._loop.run_in_loop(lambda client: (self._tracker.life, client.consumer_group_metadata()))
                if asked is None:
                    return [None] * len(pairs)  # no client is open: the member no longer holds these deliveries
                try:
                    with self._loop.sending:
                        return self._in_transaction(transactions, pairs, *asked)
                except MemberExpelled:
                    # usually the group has rebalanced; after repeated expulsions the consumer rejoins the group
                    if time.monotonic() >= until_s:
                        self._loop.rejoin(asked[0])
                        raise
            time.sleep(POLL_S)  # without the lock: the poll loop must go on with the rebalance

    def _in_transaction(
        self, transactions: Transactions, pairs: Sequence[tuple[Delivery, Message]], life: int, group: Any
    ) -> list[PublishFailure | None]:
        answers: list[PublishFailure | None] = [None] * len(pairs)
        with self._changed:
            chosen = self._unsettled(pairs)
            handles = [pairs[index][0].handle for index in chosen]
            if not chosen or life != self._tracker.life:
                return answers
            for _, topic, partition, offset in handles:
                self._tracker.partitions[topic, partition].settle(offset)
            places = {(topic, partition) for _, topic, partition, _ in handles}
            offsets = self._topic_ids.marked(self._tracker.to_commit(places))
        done = False
        try:
            failures = transactions.send(self._placed([pairs[index][1] for index in chosen]), offsets, group)
            done = not any(failures)
            for index, failure in zip(chosen, failures, strict=True):
                answers[index] = failure
        except BrokerInDoubt:
            with contextlib.suppress(BrokerError):
                transactions.revive()  # ends the transaction: then the offsets show whether it was committed
            self._loop.rejoin(life)
            raise
        finally:
            with self._changed:
                for _, topic, partition, offset in handles:
                    known = self._tracker.partitions.get((topic, partition)) if life == self._tracker.life else None
                    if known is not None and not done:
                        known.unsettle(offset)
                    elif known is not None:
                        known.forget_settled()
        return answers

    def _publish_and_settle(self, pairs: Sequence[tuple[Delivery, Message]]) -> list[PublishFailure | None]:
        with self._changed:
            chosen = self._unsettled(pairs)
        answers: list[PublishFailure | None] = [None] * len(pairs)
        for index, failure in zip(chosen, self._publish([pairs[index][1] for index in chosen]), strict=True):
            answers[index] = failure
        self.ack([pairs[index][0] for index in chosen if answers[index] is None])
        return answers

    def _unsettled(self, pairs: Sequence[tuple[Delivery, Message]]) -> list[int]:
        """The indexes of the pairs whose deliveries this member still holds and has not settled.

        The caller holds the lock.
        """
        return [
            index
            for index, (delivery, _) in enumerate(pairs)
            if (held := self._tracker.held(delivery)) is not None and not held.settled
        ]

"""One member of a Kafka consumer group that settles records one by one, in any order.

One thread of ours polls the client, fills a buffer and pauses it when that is full, of records or of bytes; whoever
calls `poll` takes from the buffer, and commits in the ledgers' texts that it did before a record is handed out, so that
a death counts against it. Whoever settles commits what that moves. Commits go one after the other, so that none
overtakes a later one.

A member that nobody polls and nothing beats for `idle_ms` leaves the group, and joins again at the next poll: its
partitions go to the living although its process runs. One that was expelled joins anew: a cooperative client would
keep the partitions, and tell nobody. A lost partition's deliveries are dead: settling them does nothing.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from retry_topic.brokers.kafka.faults import EXPELLED, MemberExpelled, broker_error, error_of
from retry_topic.brokers.kafka.hands import Hands, Place
from retry_topic.brokers.kafka.records import from_record
from retry_topic.brokers.kafka.topic_ids import TopicIds
from retry_topic.brokers.kafka.transactions import Transactions
from retry_topic.brokers.kafka.valve import Valve
from retry_topic.brokers.protocol import Delivery, InDoubt, PublishFailure
from retry_topic.message import Message
from wheel_sched.errors import BrokerError, BrokerUnavailable
from wheel_sched.escaping import logger_of

logger = logger_of("retry_topic.kafka")

_AT_ONCE = 100  # taken from the client before it is seen how large they are
_TURN_S = 0.05  # how soon the polling thread sees what others want of it when it has nothing out
_SHORT_S = 0.002  # the same while it has
_CLOSE_S = 15.0
_COMMIT_S = 10.0

Publish = Callable[[Sequence[Message]], list[PublishFailure | None]]


class KafkaConsumer:
    """Made by `KafkaBroker.consumer`.

    Args:
        settings: librdkafka's, of a group member.
        topics: what it reads.
        idle_ms: see `Broker.consumer`.
        transactions: of this member, for `forward`; None: it publishes first and settles after.
        publish: the broker's.
        places: where the group has committed, with the texts beside.
        placed: says of messages where on their topics they go.
        topic_ids: tells whether topics are still the same.
        full_bytes: in the buffer at which fetching pauses.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        topics: Sequence[str],
        idle_ms: int,
        transactions: Transactions | None,
        publish: Publish,
        places: Callable[[list[TopicPartition]], list[TopicPartition]],
        placed: Callable[[Sequence[Message]], list[Message]],
        topic_ids: TopicIds,
        full_bytes: int,
    ) -> None:
        self._topic_ids = topic_ids
        self._places = places
        self._placed = placed
        self._settings = dict(settings)
        self._topics = list(topics)
        self._idle_ms = idle_ms
        self._transactions = transactions
        self._publish = publish
        self._client: Any = None
        self._hands = Hands(idle_ms, _now_ms)
        self._valve = Valve(self._hands, full_bytes)
        self._failure: Exception | None = None
        self._sign_ms = _now_ms()
        self._polling = 0
        self._rejoin = False
        self._closed = False
        self._changed = threading.Condition()
        self._requests: deque[tuple[Callable[[Any], Any], Future[Any]]] = deque()
        self._committing = threading.Lock()  # one commit or transaction of the callers' at a time
        self._sending = threading.Lock()  # a transaction is under way: the polling thread must not commit beside it
        self._thread = threading.Thread(target=self._run, name=f"kafka-{settings['group.id']}", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        with self._changed:
            return f"<KafkaConsumer {self._settings['group.id']} {self._hands!r}>"

    # -- the caller's side

    def poll(self, limit: int, timeout_ms: int) -> list[Delivery]:
        """Up to `limit` deliveries, those that were silent too long first; waits up to `timeout_ms` for the first.

        Raises:
            BrokerUnavailable: the cluster does not answer; nothing was handed out.
        """
        until_s = time.monotonic() + timeout_ms / 1000
        with self._changed:
            self._polling += 1
            self._changed.notify_all()
        try:
            while True:
                with self._changed:
                    if self._closed:
                        raise BrokerUnavailable("this consumer was closed: nothing was read")
                    self._sign_ms = _now_ms()
                    taken, life = self._hands.take(limit), self._hands.life
                    if not taken:
                        failure, self._failure = self._failure, None
                        if failure is not None:
                            if isinstance(failure, BrokerError):
                                raise failure
                            raise broker_error(failure, f"reading as group {self._settings['group.id']!r}")
                        left_s = until_s - time.monotonic()
                        if left_s <= 0 or limit < 1:
                            return []
                        self._changed.wait(min(left_s, self._hands.lapse_in_s()))
                        continue
                try:
                    asked = self._topic_ids.ask({delivery.handle[1] for delivery in taken})
                    if self._commit({delivery.handle[1:3] for delivery in taken}):
                        if self._topic_ids.same(asked):
                            return taken
                        # it may be of another log than the offsets it was read behind
                        logger.warning("kafka.topic_made_anew: group %s begins anew", self._settings["group.id"])
                        self._anew(life)
                except BrokerError:
                    with self._changed:
                        self._hands.give_back(taken)
                    raise
        finally:
            with self._changed:
                self._polling -= 1
                self._sign_ms = _now_ms()

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Settle deliveries and commit that. Repeating it is harmless.

        Raises:
            BrokerUnavailable: it is settled here, but not yet at the cluster: a death now brings it back.
        """
        with self._changed:
            self._sign_ms = _now_ms()
            moved: set[Place] = set()
            for delivery in deliveries:
                entry = self._hands.entry(delivery)
                if entry is not None:  # also one that is settled: its commit may have failed
                    entry.settled = True
                    moved.add(delivery.handle[1:3])
        if moved:
            self._commit(moved)

    def forward(self, pairs: Sequence[tuple[Delivery, Message]]) -> list[PublishFailure | None]:
        """Publish each message and settle its delivery, in one transaction where there are any.

        Raises:
            BrokerUnavailable: nothing is known; what was not done comes again.
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
        """Say that these are worked on; those of a partition that was lost stay lost."""
        now_ms = _now_ms()
        with self._changed:
            for delivery in deliveries:
                entry = self._hands.entry(delivery)
                if entry is not None:
                    entry.since_ms = self._sign_ms = now_ms

    def assignments(self) -> dict[Place, int]:
        """See `PartitionedConsumer`."""
        with self._changed:
            return {place: ledger.term for place, ledger in self._hands.ledgers.items()}

    def assignment_of(self, delivery: Delivery) -> int:
        """See `PartitionedConsumer`."""
        return int(delivery.handle[0])

    def topic_id_of(self, delivery: Delivery) -> str:
        """See `PartitionedConsumer`."""
        return self._topic_ids.of(delivery.handle[1])

    def rejoin(self) -> None:
        """See `PartitionedConsumer`."""
        with self._changed:
            self._begin_anew()

    def close(self) -> None:
        """Leave the group at once; what is unsettled goes to others. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_S)
        if self._transactions is not None:
            self._transactions.close()

    # -- commits

    def _commit(self, places: set[Place]) -> bool:
        """Commit where these partitions are; False when the member was expelled and begins anew.

        Raises:
            BrokerUnavailable: the cluster does not answer; what is held is held on.
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
            time.sleep(_TURN_S)  # without the lock: the polling thread has a rebalance to get on with

    def _commit_once(self, places: set[Place]) -> bool:
        with self._committing:
            return bool(self._asked(lambda client: self._commit_here(client, places)))

    def _commit_here(self, client: Any, places: set[Place]) -> bool:
        """In the polling thread."""
        with self._changed:
            offsets = self._topic_ids.marked(self._hands.accounts(places))
        if not offsets:
            return False
        try:
            client.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            if error_of(error).code() in EXPELLED:
                with self._changed:
                    self._begin_anew()
            raise
        with self._changed:
            self._hands.forget_settled(places)
        return True

    def _asked(self, call: Callable[[Any], Any]) -> Any:
        """Have the polling thread do something with its client; None when there is none or it goes.

        Nobody else touches the client: its calls exclude each other, and a poll keeps the others waiting.
        """
        asked: Future[Any] = Future()
        with self._changed:
            if self._client is None:
                return None
            self._requests.append((call, asked))
            self._changed.notify_all()
        return asked.result()

    def _forward(
        self, transactions: Transactions, pairs: Sequence[tuple[Delivery, Message]]
    ) -> list[PublishFailure | None]:
        """All of them or none: None for each when it is done, else why not for those to blame."""
        until_s = time.monotonic() + _COMMIT_S
        while True:
            with self._committing:
                asked = self._asked(lambda client: (self._hands.life, client.consumer_group_metadata()))
                if asked is None:
                    return [None] * len(pairs)  # none of them is ours any more
                try:
                    with self._sending:
                        return self._in_transaction(transactions, pairs, *asked)
                except MemberExpelled:
                    # mostly the group has rebalanced since; a member that is told so on and on is none any more
                    if time.monotonic() >= until_s:
                        self._anew(asked[0])
                        raise
            time.sleep(_TURN_S)  # without the lock: the polling thread has a rebalance to get on with

    def _in_transaction(
        self, transactions: Transactions, pairs: Sequence[tuple[Delivery, Message]], life: int, group: Any
    ) -> list[PublishFailure | None]:
        answers: list[PublishFailure | None] = [None] * len(pairs)
        with self._changed:
            chosen = [
                index
                for index, (delivery, _) in enumerate(pairs)
                if (entry := self._hands.entry(delivery)) is not None and not entry.settled
            ]
            handles = [pairs[index][0].handle for index in chosen]
            if not chosen or life != self._hands.life:
                return answers
            for _, topic, partition, offset in handles:
                self._hands.ledgers[topic, partition].settle(offset)
            places = {(topic, partition) for _, topic, partition, _ in handles}
            offsets = self._topic_ids.marked(self._hands.accounts(places))
        done = False
        try:
            failures = transactions.send(self._placed([pairs[index][1] for index in chosen]), offsets, group)
            done = not any(failures)
            for index, failure in zip(chosen, failures, strict=True):
                answers[index] = failure
        except InDoubt:
            with contextlib.suppress(BrokerError):
                transactions.revive()  # ends it, so that the offsets tell whether it was committed
            self._anew(life)
            raise
        finally:
            with self._changed:
                for _, topic, partition, offset in handles:
                    ledger = self._hands.ledgers.get((topic, partition)) if life == self._hands.life else None
                    if ledger is not None and not done:
                        ledger.unsettle(offset)
                    elif ledger is not None:
                        ledger.forget_settled()
        return answers

    def _anew(self, life: int) -> None:
        with self._changed:
            if life == self._hands.life:
                self._begin_anew()

    def _publish_and_settle(self, pairs: Sequence[tuple[Delivery, Message]]) -> list[PublishFailure | None]:
        with self._changed:
            chosen = [
                index
                for index, (delivery, _) in enumerate(pairs)
                if (entry := self._hands.entry(delivery)) is not None and not entry.settled
            ]
        answers: list[PublishFailure | None] = [None] * len(pairs)
        for index, failure in zip(chosen, self._publish([pairs[index][1] for index in chosen]), strict=True):
            answers[index] = failure
        self.ack([pairs[index][0] for index in chosen if answers[index] is None])
        return answers

    # -- the polling thread

    def _begin_anew(self) -> None:
        """Forget all that is held and have the polling thread join again; under `_changed`."""
        self._hands.begin()
        self._rejoin = True
        self._changed.notify_all()

    def _run(self) -> None:
        while not self._closed:
            try:
                self._membership()
            except Exception as error:
                if not isinstance(error, KafkaException):
                    logger.exception("kafka.member_failed")
                with self._changed:
                    self._failure = error
                    self._changed.notify_all()
                    self._changed.wait(1.0)

    def _membership(self) -> None:
        """From joining the group to leaving it, whatever for."""
        with self._changed:
            # one that nobody polls has nothing to join for, but for its first time
            while self._hands.life and not self._polling and not self._closed:
                self._changed.wait()
            if self._closed:
                return
            self._hands.begin()
            self._rejoin = False
            self._valve.pausing.begin()
            self._sign_ms = _now_ms()
        client: Any = Consumer(self._settings)
        self._client = client
        try:
            client.subscribe(self._topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)
            while not self._closed and not self._rejoin and not self._silent():
                self._turn(client)
        finally:
            self._leave(client)

    def _silent(self) -> bool:
        with self._changed:
            return not self._polling and bool(self._hands.ledgers) and _now_ms() - self._sign_ms > self._idle_ms

    def _leave(self, client: Any) -> None:
        with self._sending:
            with self._changed:
                # who is thrown out for silence had them in hand; who closes gives them back in good order
                held = self._hands.accounts(set(self._hands.ledgers), counted=not self._closed)
                offsets = [] if self._rejoin else self._topic_ids.marked(held)
                self._client = None
                self._hands.begin()
                self._topic_ids.begin()
                while self._requests:
                    self._requests.popleft()[1].set_result(None)
            if offsets:
                with contextlib.suppress(KafkaException, RuntimeError):
                    client.commit(offsets=offsets, asynchronous=False)
        closing = threading.Thread(target=client.close, name="kafka-close", daemon=True)
        closing.start()  # it may never return, when the cluster is away
        closing.join(_CLOSE_S / 3)

    def _turn(self, client: Any) -> None:
        with self._changed:
            if self._hands.busy and not self._requests:
                self._changed.wait(_SHORT_S)  # somebody will want something soon, and could not interrupt a poll
            requests, self._requests = self._requests, deque()
            timeout_s = 0.0 if requests or self._hands.busy else _TURN_S
        for call, asked in requests:
            try:
                asked.set_result(call(client))
            except BaseException as error:
                asked.set_exception(error)
        with self._changed:
            if self._topic_ids.look(topic for topic, _ in self._hands.ledgers):
                self._begin_anew()
                return
        if self._valve.waits():
            return
        self._valve.turn(client)
        record = client.poll(timeout_s)
        records = [] if record is None else [record]
        while records:
            self._keep(records)
            records = [] if self._valve.full else client.consume(_AT_ONCE, 0)

    def _keep(self, records: Sequence[Any]) -> None:
        with self._changed:
            for found in records:
                error = found.error()
                if error is None:
                    self._hands.fetch(found.offset(), from_record(found))
                    self._valve.pausing.flow([(found.topic(), found.partition())])
                elif error.code() in EXPELLED:
                    self._begin_anew()
                elif error.fatal() or not error.retriable():
                    self._failure = KafkaException(error)
            self._changed.notify_all()

    # -- rebalances; in the polling thread, from inside `client.poll`

    def _assigned(self, client: Any, partitions: list[TopicPartition]) -> None:
        if not partitions:
            return
        if self._valve.pausing.are_deaf((place.topic, place.partition) for place in partitions):
            self._anew(self._hands.life)
            return
        try:
            found = self._topic_ids.look_up(place.topic for place in partitions)
            known = self._places(partitions)
        except BrokerError as error:  # what is raised in here, librdkafka would not know what to do with
            with self._changed:
                self._failure = error
                self._begin_anew()
            return
        starts = []
        with self._changed:
            if self._topic_ids.changed(found, (topic for topic, _ in self._hands.ledgers)):
                self._begin_anew()  # those we have are of another one
                return
            self._topic_ids.take(found)
            own = self._topic_ids.own(known)
            for topic, partition in ((place.topic, place.partition) for place in partitions):
                offset, text = own.get((topic, partition), (-2, ""))
                self._hands.open((topic, partition), max(0, offset), text)
                starts.append(TopicPartition(topic, partition, offset))
        client.incremental_assign(starts)

    def _revoked(self, client: Any, partitions: list[TopicPartition]) -> None:
        with self._sending:
            with self._changed:
                places = {(place.topic, place.partition) for place in partitions}
                offsets = self._topic_ids.marked(self._hands.accounts(places, counted=False))
                self._lost(client, partitions)
            if offsets and client is self._client:
                with contextlib.suppress(KafkaException):
                    client.commit(offsets=offsets, asynchronous=False)

    def _lost(self, client: Any, partitions: list[TopicPartition]) -> None:
        places = {(place.topic, place.partition) for place in partitions}
        with self._changed:
            if client is self._client:  # else it was left, and took long to close
                self._hands.drop(places)
                self._valve.pausing.lose(places)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000

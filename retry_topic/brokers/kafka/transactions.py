"""Transactional producers. For each transaction they report: committed, not committed, or not known.

`Transactions` sends batches, `KafkaSender` the claims of a delay store.

Only one thread at a time may use a `Transactions`. Every call that can block has a deadline (`DeadlineCall`). After the
deadline a new producer with the same id replaces the old one. The new producer's `init_transactions` ends the open
transaction by commit or abort. The offsets that were part of the transaction show which of the two happened.

Two producers may take turns, each with its own id. A broker answers a commit before it has written the transaction's
markers. If a producer with the same id begins another transaction meanwhile, it has to wait (librdkafka waits 20 ms or
100 ms, even if less is needed). A transaction begins only after the previous one is committed, so their order is kept.

librdkafka reports only failed messages, because each report takes the interpreter's lock.

Source: KIP-98 (transactions), KIP-447 (offsets with group metadata).
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import partial
from typing import Any, NoReturn

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from retry_topic.brokers.kafka.faults import (
    EXPELLED,
    RIGHTS,
    DeadlineCall,
    DeadlinePassed,
    MemberExpelled,
    broker_error,
    call_with_deadline,
    error_of,
    not_ours,
    publish_failure,
    said_meanwhile,
    unknown_topic,
)
from retry_topic.brokers.kafka.producing import produce
from retry_topic.brokers.kafka.topology import Topology
from retry_topic.brokers.protocol import BrokerInDoubt, Fenced, PublishFailure
from retry_topic.message import Message
from retry_topic.message.headers import return_to_origin
from wheel_sched.errors import BrokerUnavailable
from wheel_sched.escaping import logger_of

logger = logger_of("retry_topic.kafka")

_FENCED = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})
_COMMIT = "commit_transaction"
READ_S = 10.0  # the longest time for reading the number of the last claim
AGAIN_S = 86_400.0  # after this time the number of the last claim is committed again


class Transactions:
    """Sends messages and offsets in transactions, with producers of one transactional id.

    Args:
        settings: librdkafka's settings.
        transactional_id: the newest producer with this id fences all others.
        partitions: gives the number of partitions of a topic, 0 for an absent topic.
        timeout_s: the longest time for one call.
        closed: gets topics, and returns those that this client may not write to. Called when a transaction fails
            without a cause. Defaults to a function that returns none.
        producers: the number of producers that take turns. Defaults to 1.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        transactional_id: str,
        partitions: Callable[[str], int],
        timeout_s: float,
        closed: Callable[[Set[str]], Set[str]] = lambda topics: frozenset(),
        *,
        producers: int = 1,
    ) -> None:
        self._closed = closed
        self.transactional_id = transactional_id
        self._settings = {**settings, "delivery.report.only.error": True}
        self._ids = [transactional_id, *(f"{transactional_id}.{turn}" for turn in range(2, producers + 1))]
        self._partitions = partitions
        self._timeout_s = timeout_s
        self._producers: deque[Any] = deque()  # the producer of the next transaction is first; empty: make new ones

    def revive(self) -> None:
        """Replace all producers by new ones. This fences older producers with these ids and ends their transactions.

        Raises:
            BrokerUnavailable: the cluster does not answer. Whether an open transaction was committed is not known.
        """
        self._producers.clear()
        fresh: list[Any] = [Producer({**self._settings, "transactional.id": name}) for name in self._ids]
        calls = [DeadlineCall(partial(producer.init_transactions, self._timeout_s), "init") for producer in fresh]
        for call in calls:
            try:
                call.wait(self._timeout_s)
            except KafkaException as error:
                self._refused("init_transactions", error)
            except DeadlinePassed as error:
                raise BrokerUnavailable(f"{error}: whether open transactions were committed is not known") from error
        self._producers.extend(fresh)

    @property
    def ready(self) -> bool:
        """Whether there is a producer that can begin a transaction."""
        return bool(self._producers)

    def send(
        self, messages: Sequence[Message], offsets: Sequence[TopicPartition], group: Any
    ) -> list[PublishFailure | None]:
        """Produce all of `messages` and commit `offsets` for `group` in one transaction, or nothing at all.

        Returns one answer for each message. All None: the transaction is committed. Otherwise nothing was sent, and
        each message at fault has its failure.

        Raises:
            Fenced: another producer has taken over. Nothing was sent.
            BrokerInDoubt: the transaction may be committed.
            BrokerError: nothing was sent.
        """
        unknown = {topic for topic in {message.topic for message in messages} if not self._partitions(topic)}
        if unknown:
            return [unknown_topic(message.topic) if message.topic in unknown else None for message in messages]
        if not self._producers:
            self.revive()
        transaction = _Transaction(self._producers[0], messages, offsets, group, self._timeout_s)
        try:
            to_blame = DeadlineCall(transaction.perform, "transaction").wait(self._timeout_s, transaction.steps)
        except DeadlinePassed as error:  # the transaction's present step and its later steps may still take effect
            self._producers.clear()
            raise BrokerInDoubt(f"{error}, it was at {transaction.steps[-1]}: it may be committed") from error
        except BrokerUnavailable:
            to_blame = self._barred(messages)
            if not to_blame:
                self._abort(transaction.producer)
                raise
        except (KafkaException, RuntimeError, SystemError) as error:
            self._failed(transaction, error)
        if to_blame:
            self._abort(transaction.producer)
        else:
            self._producers.rotate(-1)
        return [to_blame.get(place) for place in range(len(messages))]

    def _barred(self, messages: Sequence[Message]) -> dict[int, PublishFailure]:
        """The failures of messages whose topics this client may not write to. librdkafka reports no such failure."""
        closed = self._closed({message.topic for message in messages})
        return {place: not_ours(message.topic) for place, message in enumerate(messages) if message.topic in closed}

    def close(self) -> None:
        """Drop the producers. An open transaction ends at its timeout or with the next producer of this id."""
        self._producers.clear()

    def _failed(self, transaction: _Transaction, error: Exception) -> NoReturn:
        step, found = transaction.steps[-1], error_of(error)
        if step != _COMMIT:
            try:
                self._refused(step, error)
            finally:
                self._abort(transaction.producer)
        if isinstance(found, KafkaError) and found.txn_requires_abort():
            self._abort(transaction.producer)
            raise BrokerUnavailable(f"the transaction was aborted: {found.str()}: nothing was sent") from error
        self._producers.clear()
        if isinstance(found, KafkaError) and found.code() in _FENCED:
            raise Fenced(f"{self.transactional_id}: {found.str()}: nothing was sent") from error
        raise BrokerInDoubt(f"{error}: the transaction may be committed") from error

    def _refused(self, step: str, error: Exception) -> NoReturn:
        """Raise the error for a step that failed before the commit."""
        found = error_of(error)
        if not isinstance(found, KafkaError) or step == "begin_transaction" or found.fatal():
            self._producers.clear()
        if not isinstance(found, KafkaError):  # `flush` of a fenced producer: the client loses the error
            raise BrokerUnavailable(f"{step}: {error}: nothing was sent") from error
        if found.code() in _FENCED:
            self._producers.clear()
            raise Fenced(f"{self.transactional_id}: {found.str()}: nothing was sent") from error
        if found.code() in EXPELLED:
            raise MemberExpelled(f"{step}: {found.str()}: nothing was sent") from error
        if found.code() in RIGHTS:
            raise broker_error(found, f"{self.transactional_id}: {step}") from error
        raise BrokerUnavailable(f"{step}: {found.str()}: nothing was sent") from error

    def _abort(self, producer: Any) -> None:
        """Abort the transaction. If that fails, drop the producers: the next ones, with the same ids, will abort it."""
        if not self._producers:
            return
        try:
            producer.purge(in_queue=True, in_flight=False, blocking=False)
            call_with_deadline(
                lambda: producer.abort_transaction(self._timeout_s), self._timeout_s, "abort_transaction"
            )
        except (KafkaException, DeadlinePassed, RuntimeError) as error:
            logger.info("kafka.abort_failed: %s", error)
            self._producers.clear()


class _Transaction:
    """One transaction from its beginning to its commit, in its own thread. The caller may stop waiting for it."""

    def __init__(
        self,
        producer: Any,
        messages: Sequence[Message],
        offsets: Sequence[TopicPartition],
        group: Any,
        timeout_s: float,
    ) -> None:
        self.producer = producer
        self.steps: list[str] = ["begin_transaction"]
        self._messages = messages
        self._offsets = list(offsets)
        self._group = group
        self._timeout_s = timeout_s
        self._failures: dict[int, PublishFailure] = {}

    def perform(self) -> dict[int, PublishFailure]:
        """Run the steps. Returns the failures of the messages at fault, by index; none if the transaction is committed.

        Raises:
            BrokerUnavailable: not committed, and no message is at fault.
            KafkaException, RuntimeError, SystemError: the last step failed.
        """
        producer = self.producer
        producer.begin_transaction()
        for place, message in enumerate(self._messages):
            refused = produce(producer, message, partial(_note, self._failures, place, message.topic))
            if refused is not None and refused.transient:  # an earlier message has made the transaction fail
                return self._at_fault(refused.reason)
            if refused is not None:
                return {place: refused}
        if self._offsets:  # librdkafka sends the messages meanwhile
            self.steps.append("send_offsets")
            try:
                producer.send_offsets_to_transaction(self._offsets, self._group, self._timeout_s)
            except KafkaException as error:
                found = error_of(error)
                if not found.txn_requires_abort() or found.code() in _FENCED | EXPELLED:
                    raise
                return self._at_fault(found.str(), error)
        self.steps.append("flush")
        left = producer.flush(self._timeout_s)
        if left or self._failures:
            if to_blame := self._to_blame():
                return to_blame
            failures = [failure.reason for failure in self._failures.values()]
            why = failures[0] if failures else f"{left} messages got no answer in time"
            raise BrokerUnavailable(f"a transaction was aborted: {why}: nothing was sent")
        self.steps.append(_COMMIT)
        producer.commit_transaction(self._timeout_s)
        return {}

    def _at_fault(self, why: str, error: Exception | None = None) -> dict[int, PublishFailure]:
        """The failures of the messages that made the transaction fail, from their delivery reports.

        Raises:
            BrokerUnavailable: no message is at fault. `why` tells what the client said instead.
        """
        self.producer.purge(in_queue=True, in_flight=False, blocking=False)
        self.producer.flush(self._timeout_s)
        if to_blame := self._to_blame():
            return to_blame
        raise BrokerUnavailable(f"a transaction was aborted: {why}: nothing was sent") from error

    def _to_blame(self) -> dict[int, PublishFailure]:
        """The permanent failures, by index. The abort makes all other messages fail too, but not permanently."""
        return {place: failure for place, failure in self._failures.items() if not failure.transient}


def _note(failures: dict[int, PublishFailure], place: int, topic: str, error: Any, _: Any) -> None:
    """Note the delivery report of a message.

    A fenced producer may keep this function for ever, because it never asks for its reports. So the function must not
    refer to the producer: otherwise Python could not free the producer.
    """
    if error is not None:
        failures[place] = publish_failure(error_of(error), topic)


def claims_topic(namespace: str) -> str:
    """The name of the topic and of the consumer group in which `KafkaSender` commits the numbers of claims."""
    return f"{re.sub(r'[^A-Za-z0-9._-]', '_', namespace)}.claims"


class KafkaSender:
    """Sends the claims of a delay store in transactions that carry the claim's number. Implements `ClaimSender`.

    Each shard has two transactional producers, which take turns. Their ids contain the namespace and the shard, so a
    new pair fences the previous pair. The transaction commits the claim's number as an offset, together with the
    messages or not at all. This offset belongs to a topic that stays empty, to the partition with the shard's number,
    and to a group that nobody joins. So a new owner of the shard learns from this offset which of the open claims were
    sent.

    The committed offset of a group without members expires (`offsets.retention.minutes`, 7 days). So the owner commits
    it again each day. For one shard, only one thread at a time may call the methods.

    Args:
        settings: librdkafka's settings of the broker.
        topology: creates the topic for the claim numbers.
        producers: makes the transactional producers of an id.
        placed: gives each message a partition and a time that its topic accepts.
        namespace: the store's namespace.
        shards: the number of the store's shards.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        topology: Topology,
        producers: Callable[[str], Transactions],
        placed: Callable[[Iterable[Message]], list[Message]],
        namespace: str,
        shards: int,
    ) -> None:
        self._topology = topology
        self._producers = producers
        self._placed = placed
        self._shards = shards
        self.topic = claims_topic(namespace)
        self._senders: dict[int, Transactions] = {}
        self._committed_s: dict[int, float] = {}
        # this client never subscribes: it reads offsets, and the committing transactions use its group metadata
        settings = {**settings, "group.id": self.topic, "isolation.level": "read_committed"}
        self._reader: Any = Consumer({**settings, "enable.auto.commit": False})

    def take_over(self, shard: int) -> int | None:
        """Fence the shard's previous sender. Returns the number of the last claim that was sent, None if not known."""
        self._topology.create([self.topic], partitions=self._shards, settings={"cleanup.policy": "compact"})
        sender = self._senders.get(shard)
        if sender is None:
            sender = self._senders[shard] = self._producers(f"{self.topic}-{shard}")
        sender.revive()
        place = TopicPartition(self.topic, shard)
        try:
            (found,) = call_with_deadline(lambda: self._reader.committed([place], timeout=READ_S), READ_S, "committed")
        except DeadlinePassed as error:
            raise BrokerUnavailable(f"{error}: which claims were sent is not known") from error
        except KafkaException as error:
            why = said_meanwhile(self._reader, error)
            raise broker_error(why, "the number of the last claim could not be read") from error
        if found.error is not None:
            raise broker_error(found.error, "the number of the last claim could not be read")
        return int(found.offset) if found.offset >= 0 else None

    def send(self, shard: int, number: int, messages: Sequence[Message]) -> list[PublishFailure | None]:
        """Send a claim's messages and commit its number, in one transaction.

        Returns one answer for each message, and raises what `ClaimSender.send` raises.
        """
        sender, messages = self._senders[shard], self._placed(map(return_to_origin, messages))
        if not sender.ready:  # a new producer would fence the present owner of the shard
            raise BrokerInDoubt(
                f"the producer of shard {shard} was given up: take the shard over again to learn what was sent"
            )
        offsets = [TopicPartition(self.topic, shard, number)]
        answers = sender.send(messages, offsets, self._reader.consumer_group_metadata())
        self._committed_s[shard] = time.monotonic()
        return answers

    def stale(self, shard: int) -> bool:
        """Whether the shard's last claim number must be committed again, because Kafka deletes old commits."""
        return time.monotonic() - self._committed_s.get(shard, time.monotonic()) > AGAIN_S

    def close(self) -> None:
        """Close the producers and the client that reads offsets."""
        for sender in self._senders.values():
            sender.close()
        self._reader.close()

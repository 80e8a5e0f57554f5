"""A transactional producer that can always say what became of a transaction, or that it cannot.

One transaction at a time, one thread. Its offsets go first: while the broker is still writing the marks of the
transaction before, librdkafka asks again after `retry.backoff.ms` for offsets, and after a fixed 20 ms for messages.
Messages that arrive are not reported, only those that fail, for each report takes the interpreter's lock. Every blocking call is attended: it may be left behind (see `attendant`), and
then the producer is given up for a new one of the same id, whose `init_transactions` ends what the old one had open,
the one way or the other; the offsets that were part of it tell which.

Source: KIP-98 (transactions), KIP-447 (offsets with group metadata).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from retry_topic.brokers.kafka.attendant import LeftBehind, attended
from retry_topic.brokers.kafka.faults import EXPELLED, MemberExpelled, error_of, publish_failure, unknown_topic
from retry_topic.brokers.kafka.producing import produce
from retry_topic.brokers.protocol import Fenced, InDoubt, PublishFailure
from retry_topic.message import Message
from wheel_sched.errors import BrokerUnavailable

logger = logging.getLogger("retry_topic.kafka")

_FENCED = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})


class Transactions:
    """Transactions under one id.

    Args:
        settings: librdkafka's.
        transactional_id: whoever uses it last fences all others.
        partitions: how many partitions a topic has, 0 = there is no such topic.
        timeout_s: how long one call may take.
    """

    def __init__(
        self, settings: Mapping[str, Any], transactional_id: str, partitions: Callable[[str], int], timeout_s: float
    ) -> None:
        self.transactional_id = transactional_id
        self._settings = {**settings, "transactional.id": transactional_id, "delivery.report.only.error": True}
        self._partitions = partitions
        self._timeout_s = timeout_s
        self._producer: Any = None

    def revive(self) -> None:
        """A new producer in place of whatever there was: others of this id are fenced, what they had open is ended.

        Raises:
            BrokerUnavailable: the cluster does not answer; nothing is known.
        """
        self._producer = None
        fresh: Any = Producer(self._settings)
        try:
            self._call("init_transactions", lambda: fresh.init_transactions(self._timeout_s))
        except LeftBehind as error:
            raise BrokerUnavailable(f"{error}: nothing is known of what was open") from error
        self._producer = fresh

    @property
    def ready(self) -> bool:
        """Whether there is a producer to begin with."""
        return self._producer is not None

    def send(
        self, messages: Sequence[Message], offsets: Sequence[TopicPartition], group: Any
    ) -> list[PublishFailure | None]:
        """Produce all of `messages` and commit `offsets` for `group` in one transaction, or nothing at all.

        Answers why not, for the messages to blame; all None: it is committed. When one is to blame nothing was sent.

        Raises:
            Fenced: another has taken over; nothing was sent.
            InDoubt: it may be committed.
            BrokerUnavailable: nothing was sent.
        """
        unknown = {topic for topic in {message.topic for message in messages} if not self._partitions(topic)}
        if unknown:
            return [unknown_topic(message.topic) if message.topic in unknown else None for message in messages]
        if self._producer is None:
            self.revive()
        producer: Any = self._producer
        try:
            producer.begin_transaction()
        except (KafkaException, RuntimeError) as error:
            self._give_up(error)
        failed: dict[int, PublishFailure] = {}
        try:
            if offsets:
                self._call(
                    "send_offsets", lambda: producer.send_offsets_to_transaction(list(offsets), group, self._timeout_s)
                )
            for index, message in enumerate(messages):
                refused = produce(producer, message, partial(_note, failed, index, message.topic))
                if refused is not None:
                    self._abort()
                    return [refused if place == index else None for place in range(len(messages))]
            left = self._call("flush", lambda: producer.flush(self._timeout_s))
            if left or failed:
                to_blame = {index: failure for index, failure in failed.items() if not failure.transient}
                if to_blame:
                    self._abort()  # which fails the others as well, so who is to blame was noted before
                    return [to_blame.get(place) for place in range(len(messages))]
                why = next(iter(failed.values())).reason if failed else f"{left} messages got no answer in time"
                raise BrokerUnavailable(f"a transaction was aborted: {why}: nothing was sent")
        except BrokerUnavailable:
            self._abort()
            raise
        except LeftBehind as error:
            self._producer = None  # not committed, and never will be: the next one of this id aborts it
            raise BrokerUnavailable(f"{error}: nothing was sent") from error
        self._commit(producer)
        return [None] * len(messages)

    def close(self) -> None:
        """Let go of the producer; an open transaction ends at its timeout or with the next producer of this id."""
        self._producer = None

    def _commit(self, producer: Any) -> None:
        try:
            attended(lambda: producer.commit_transaction(self._timeout_s), self._timeout_s, "commit_transaction")
        except KafkaException as error:
            found = error_of(error)
            if found.txn_requires_abort():
                self._abort()
                raise BrokerUnavailable(f"the transaction was aborted: {found.str()}: nothing was sent") from error
            self._producer = None
            if found.code() in _FENCED:
                raise Fenced(f"{self.transactional_id}: {found.str()}: nothing was sent") from error
            raise InDoubt(f"{found.str()}: the transaction may be committed") from error
        except LeftBehind as error:
            self._producer = None
            raise InDoubt(f"{error}: the transaction may be committed") from error

    def _call(self, name: str, call: Callable[[], Any]) -> Any:
        try:
            return attended(call, self._timeout_s, name)
        except KafkaException as error:
            found = error_of(error)
            if found.code() in _FENCED:
                self._producer = None
                raise Fenced(f"{self.transactional_id}: {found.str()}: nothing was sent") from error
            if found.code() in EXPELLED:
                raise MemberExpelled(f"{name}: {found.str()}: nothing was sent") from error
            if found.fatal():
                self._producer = None
            raise BrokerUnavailable(f"{name}: {found.str()}: nothing was sent") from error

    def _abort(self) -> None:
        """Abort; where that fails a new producer of this id does it."""
        producer = self._producer
        if producer is None:
            return
        try:
            producer.purge(in_queue=True, in_flight=False, blocking=False)
            attended(lambda: producer.abort_transaction(self._timeout_s), self._timeout_s, "abort_transaction")
        except (KafkaException, LeftBehind, RuntimeError) as error:
            logger.info("kafka.abort_failed: %s", error)
            self._producer = None

    def _give_up(self, error: Exception) -> None:
        self._producer = None
        found = error_of(error)
        if isinstance(found, KafkaError) and found.code() in _FENCED:
            raise Fenced(f"{self.transactional_id}: {found.str()}: nothing was sent") from error
        raise BrokerUnavailable(f"a transaction could not begin: {error}: nothing was sent") from error


def _note(failed: dict[int, PublishFailure], index: int, topic: str, error: Any, _: Any) -> None:
    failed[index] = publish_failure(error_of(error), topic)

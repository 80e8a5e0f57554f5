"""A transactional producer that can always say what became of a transaction, or that it cannot.

One transaction at a time, one thread. Every blocking call is attended: it may be left behind (see `attendant`), and
then the producer is given up for a new one of the same id, whose `init_transactions` ends what the old one had open,
the one way or the other; the offsets that were part of it tell which.

Source: KIP-98 (transactions), KIP-447 (offsets with group metadata).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from retry_topic.brokers.kafka.attendant import LeftBehind, attended
from retry_topic.brokers.kafka.faults import (
    EXPELLED,
    MemberExpelled,
    error_of,
    not_ours,
    publish_failure,
    unknown_topic,
)
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
        closed: which of some topics we may not write to: asked when nobody says what a transaction has failed for.
            Defaults to none.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        transactional_id: str,
        partitions: Callable[[str], int],
        timeout_s: float,
        closed: Callable[[Set[str]], Set[str]] = lambda topics: frozenset(),
    ) -> None:
        self._closed = closed
        self.transactional_id = transactional_id
        self._settings = {**settings, "transactional.id": transactional_id}
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
        answers: list[PublishFailure | None] = [
            None if self._partitions(message.topic) else unknown_topic(message.topic) for message in messages
        ]
        if any(answers):
            return answers
        if self._producer is None:
            self.revive()
        producer: Any = self._producer
        try:
            producer.begin_transaction()
        except (KafkaException, RuntimeError) as error:
            self._give_up(error)
        for index, message in enumerate(messages):
            refused = produce(producer, message, _reporter(answers, index, message))
            if refused is not None:
                self._abort()
                return [refused if place == index else None for place in range(len(messages))]
        try:
            left = self._call("flush", lambda: producer.flush(self._timeout_s))
            failed = [answer for answer in answers if answer is not None]
            if left or failed:
                to_blame = [None if answer is None or answer.transient else answer for answer in answers]
                if not any(
                    to_blame
                ):  # a partition that may not be part of a transaction leaves its messages unanswered
                    closed = self._closed({message.topic for message in messages})
                    to_blame = [not_ours(message.topic) if message.topic in closed else None for message in messages]
                if any(to_blame):
                    self._abort()  # which fails the others as well, so who is to blame was noted before
                    return to_blame
                why = failed[0].reason if failed else f"{left} messages got no answer in time"
                raise BrokerUnavailable(f"a transaction was aborted: {why}: nothing was sent")
            if offsets:
                self._call(
                    "send_offsets", lambda: producer.send_offsets_to_transaction(list(offsets), group, self._timeout_s)
                )
        except BrokerUnavailable:
            self._abort()
            raise
        except LeftBehind as error:
            self._producer = None  # not committed, and never will be: the next one of this id aborts it
            raise BrokerUnavailable(f"{error}: nothing was sent") from error
        self._commit(producer)
        return answers

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
        except SystemError as error:  # flush of a producer that was fenced: the client loses the error on its way
            self._producer = None
            raise BrokerUnavailable(f"{name}: the producer has failed for good: nothing was sent") from error
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


def _reporter(answers: list[PublishFailure | None], index: int, message: Message) -> Callable[[Any, Any], None]:
    def told(error: Any, _: Any) -> None:
        if error is not None:
            answers[index] = publish_failure(error_of(error), message.topic)

    return told

"""One Kafka transaction that lasts as long as a Spark task.

The retry service collects the messages of a transaction before it sends them. A Spark task has hundreds of thousands of
rows, so this class gives each message to the Kafka client at once. The constructor of `Transaction` opens the
transactional id. This fences the previous owner of the id and aborts that owner's open transaction.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import Consumer, KafkaException, Producer

from retry_topic.brokers.kafka.faults import DeadlinePassed, broker_error, call_with_deadline, error_of, publish_failure
from retry_topic.brokers.kafka.producing import produce
from wheel_sched.errors import BrokerUnavailable, Rejected

if TYPE_CHECKING:
    from confluent_kafka import TopicPartition

    from retry_topic.brokers.kafka import KafkaBroker
    from retry_topic.brokers.protocol import PublishFailure
    from retry_topic.message import Message

T = TypeVar("T")

_CALL_S = 60.0
_TURN_S = 0.5


class Transaction:
    """One transaction under a transactional id. Only one thread may use it.

    Args:
        broker: the cluster.
        name: the transactional id, and the group whose offsets the transaction commits.

    Raises:
        BrokerError: the cluster refused or does not answer.
    """

    def __init__(self, broker: KafkaBroker, name: str) -> None:
        self._name = name
        self._failure: PublishFailure | None = None
        self._settings = broker.settings
        settings = {**broker.producer_settings(), "transaction.timeout.ms": broker.transaction_timeout_ms}
        self._producer: Any = Producer({**settings, "transactional.id": name})
        self._call("init_transactions", lambda: self._producer.init_transactions(_CALL_S))

    def begin(self) -> None:
        """Begin the transaction. Its timeout runs from now on."""
        self._call("begin_transaction", self._producer.begin_transaction)

    def add(self, message: Message) -> None:
        """Add one message to the transaction.

        Raises:
            Rejected: the cluster refused this or an earlier message, and would refuse it again.
            BrokerUnavailable: an earlier message could not be sent.
        """
        refused = produce(self._producer, message, self._reporter(message.topic))
        if refused is not None:
            self._failure = refused
        self._raise_failure()

    def turn(self) -> None:
        """Collect the client's reports about messages. Call this regularly while you add messages.

        Raises:
            Rejected, BrokerUnavailable: a message failed, see `add`.
        """
        self._producer.poll(0)
        self._raise_failure()

    def commit(self, offsets: Sequence[TopicPartition]) -> None:
        """Commit the messages, and these offsets for the group `name`: all or nothing.

        Raises:
            Rejected: the cluster refused a message; nothing was written.
            BrokerError: a step failed. The committed offsets show whether the transaction is committed.
        """
        until_s, left = time.monotonic() + _CALL_S, len(self._producer)
        while left:
            self._producer.flush(_TURN_S)
            self._raise_failure()
            if len(self._producer) < left:
                until_s, left = time.monotonic() + _CALL_S, len(self._producer)
            elif time.monotonic() >= until_s:
                raise BrokerUnavailable(f"{self._name}: {left} messages got no answer: nothing was written")
        self._raise_failure()
        # never subscribes: only its group metadata is needed
        named: Any = Consumer({**self._settings, "group.id": self._name})
        try:
            group = named.consumer_group_metadata()
            send = self._producer.send_offsets_to_transaction
            self._call("send_offsets", lambda: send(list(offsets), group, _CALL_S))
        finally:
            named.close()
        self._call("commit_transaction", lambda: self._producer.commit_transaction(_CALL_S))

    def abort(self) -> None:
        """Abort the transaction. If that fails, the next owner of the id aborts it, or its timeout does."""
        with contextlib.suppress(KafkaException, DeadlinePassed, RuntimeError):
            self._producer.purge(in_queue=True, in_flight=False, blocking=False)
            call_with_deadline(lambda: self._producer.abort_transaction(_CALL_S), _CALL_S, "abort_transaction")

    def _reporter(self, topic: str) -> Callable[[Any, Any], None]:
        def report(error: Any, _: Any) -> None:
            if error is not None and self._failure is None:
                self._failure = publish_failure(error_of(error), topic)

        return report

    def _raise_failure(self) -> None:
        failure = self._failure
        if failure is None:
            return
        if failure.transient:
            raise BrokerUnavailable(f"{failure.reason}: nothing of this part was written; repeat it")
        raise Rejected(f"{failure.reason}: nothing of this part was written")

    def _call(self, name: str, call: Callable[[], T]) -> T:
        try:
            return call_with_deadline(call, _CALL_S, name)
        except (KafkaException, DeadlinePassed) as error:
            raise broker_error(error, f"{self._name}: {name}") from error

"""Kafka's errors in this project's terms, and deadlines for calls into librdkafka that may never return.

An error concerns one message or the whole broker, or it leaves the result of a request unknown. Some calls can block
longer than their own timeout, even for ever (for example a commit of a transaction after the broker did not respond for
longer than a session). Such a call runs in its own daemon thread, and the caller stops waiting at the deadline. Then
the caller asks the broker whether the call took effect, as after a crash.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sized
from typing import Any, Generic, TypeVar

from confluent_kafka import KafkaError, KafkaException

from retry_topic.brokers.protocol import PublishFailure
from wheel_sched.errors import BrokerError, BrokerUnavailable

T = TypeVar("T")

_GRACE_S = 2.0  # how much longer than a call's own timeout its caller waits
# permanent: the cause is the message, its topic or a missing permission
_PERMANENT = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.POLICY_VIOLATION,
        KafkaError.INVALID_CONFIG,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError._INVALID_ARG,
    }
)
# no answer yet, or an answer of the wrong broker: the client keeps asking
UNANSWERED = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._TRANSPORT,
        KafkaError._WAIT_COORD,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REQUEST_TIMED_OUT,
    }
)
# the topic is absent now; it may be created again
TOPIC_GONE = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_ID})
# errors of a missing permission, and which permission it is
RIGHTS = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "to the topic: DESCRIBE, and READ to consume or WRITE to produce",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "to the consumer group: READ",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "to the transactional id: DESCRIBE and WRITE",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "to the cluster: IDEMPOTENT_WRITE to produce, CREATE for topics",
}
_IN_DOUBT = frozenset({KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT, KafkaError._PURGE_INFLIGHT})
# the group has expelled this member, which must join again; the client reports it only by these errors
EXPELLED = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.FENCED_MEMBER_EPOCH,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError._ASSIGNMENT_LOST,
        KafkaError._MAX_POLL_EXCEEDED,
    }
)


class MemberExpelled(BrokerUnavailable):
    """The group has expelled this member. The member joins again, and its unsettled records are handed out again."""


def error_of(error: object) -> Any:
    """The KafkaError inside an exception of confluent-kafka. Any other object is returned as it is."""
    if isinstance(error, KafkaException):
        return error.args[0]
    return error


def said_meanwhile(client: Any, error: Any) -> Any:
    """The cause of a consumer's failed call: a missing permission, or `error` itself.

    If the client has no permission for the group, only a poll reports that; other calls fail at their timeout. This
    function polls the client, so use it only for clients that read no records."""
    if error_of(error).code() in UNANSWERED:
        while (event := client.poll(0)) is not None:
            if event.error() is not None and event.error().code() in RIGHTS:
                return event.error()
    return error


def publish_failure(error: Any, topic: str) -> PublishFailure:
    """Why one message was not published."""
    error = error_of(error)
    if not isinstance(error, KafkaError):
        return PublishFailure(f"{topic}: {error}"[:500], transient=not isinstance(error, ValueError | TypeError))
    code = error.code()
    if code in _PERMANENT:
        return PublishFailure(f"{topic}: {error.str()}"[:500], transient=False)
    return PublishFailure(f"{topic}: {error.str()}"[:500], in_doubt=code in _IN_DOUBT)


def unknown_topic(topic: str) -> PublishFailure:
    """The failure of a message: the topic is absent, and this broker does not create topics."""
    return PublishFailure(f"unknown topic {topic!r}"[:500], transient=False)


def not_ours(topic: str) -> PublishFailure:
    """The failure of a message: the topic exists, and this client has no permission to write to it."""
    return PublishFailure(f"{topic}: topic authorization failed", transient=False)


def broker_error(error: object, what: str, *, writes: bool = False) -> BrokerError:
    """The error for a request that failed as a whole. `writes`: the request changes something at the broker.

    The text begins with `what`, which says what could not be done.
    """
    found = error_of(error)
    text = f"{what}: {found.str() if isinstance(found, KafkaError) else found}"
    if isinstance(found, KafkaError) and found.code() in RIGHTS:
        return BrokerError(f"{text}; nothing was done. This client's principal needs a right {RIGHTS[found.code()]}")
    if isinstance(found, KafkaError) and found.code() in _PERMANENT:
        return BrokerError(f"{text}; nothing was done")
    unanswered = not isinstance(found, KafkaError) or found.code() in UNANSWERED
    return BrokerUnavailable(f"{text}; repeat it when the broker answers", in_doubt=writes and unanswered)


class DeadlinePassed(Exception):
    """A call into librdkafka did not return in time. Whether the call took effect is not known."""


class DeadlineCall(Generic[T]):
    """A call in its own thread. It may still run and take effect after its caller has stopped waiting.

    Args:
        call: the function to call.
        name: the name of the call, for its thread and for errors.
    """

    def __init__(self, call: Callable[[], T], name: str) -> None:
        self._call = call
        self._name = name
        self._answer: list[T] = []
        self._raised: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, name=f"kafka-{name}", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float, steps: Sized = ()) -> T:
        """Wait for the call. Returns its result or raises its exception.

        Args:
            timeout_s: the call's own timeout. For a call of several steps: the timeout of each step.
            steps: a list to which the call adds an entry when it begins a step. Defaults to a call without steps.

        Raises:
            DeadlinePassed: two seconds after the timeout the call has neither returned nor begun another step.
        """
        begun = -1
        while self._thread.is_alive():
            if begun == len(steps):
                raise DeadlinePassed(f"{self._name} has not returned within {timeout_s + _GRACE_S:g} s")
            begun = len(steps)
            self._thread.join(timeout_s + _GRACE_S)
        if self._raised:
            raise self._raised[0]
        return self._answer[0]

    def _run(self) -> None:
        try:
            self._answer.append(self._call())
        except BaseException as error:
            self._raised.append(error)


def call_with_deadline(call: Callable[[], T], timeout_s: float, name: str) -> T:
    """Call `call` in a thread and wait for it. Returns its result or raises its exception; see `DeadlineCall`.

    Raises:
        DeadlinePassed: `call` has not returned two seconds after its timeout.
    """
    return DeadlineCall(call, name).wait(timeout_s)

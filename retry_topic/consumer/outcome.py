"""Verdict and outcome: what the handler says about its message, and what becomes of the delivery.

    def handle(message):
        if busy():
            return Retry(after=30, reason="warehouse is counting")
        ...                                   # returning nothing means Ack

| the handler | the delivery |
|---|---|
| returns None or `Ack` | is acknowledged |
| returns `Retry`, or raises | becomes a record in the retry topic; the policy decides whether and when it comes back |
| returns `DeadLetter` | becomes a record in the retry topic as well, with the verdict "dead" |
| is not called: the message has killed too many consumers, or has expired | as with `DeadLetter` |

The handler needs no exception to ask for a retry. Each failed attempt is one line in the log. Apart from logging, the
hook `on_failure` and reading source lines for a traceback, nothing here waits or does I/O. Threads: any thread may call
any method.
"""

from __future__ import annotations

import inspect
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Literal, Protocol

from retry_topic.brokers.protocol import Delivery
from retry_topic.consumer.config import ConsumerConfig
from retry_topic.consumer.retry_record import delivered_message, failed_message
from retry_topic.consumer.traceback_text import traceback_text
from retry_topic.history import Attempt, releasing_shard
from retry_topic.message import Message
from retry_topic.message.fingerprint import fingerprint_of
from retry_topic.message.headers import RetryState, attempts_key, content_id
from retry_topic.policy import Failure, class_name, failure_of
from wheel_sched.errors import ConfigError, Rejected
from wheel_sched.escaping import logger_of

logger = logger_of("retry_topic.consumer")

OnFailure = Callable[[Message, BaseException | None, int], object]

_SUSPECT_FROM = 3  # deliveries: one death may be a deployment; two deaths over one message hardly are
_TEXT_AT_MOST = 200
_MS = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Ack:
    """Done: the message does not come back. Returning None means the same."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Deliver the message again. The present attempt counts as failed, and the policy's caps hold.

    Args:
        after: the delay in seconds or as a timedelta, at most the policy's `retry_after_max`. Defaults to None: the
            policy's delay.
        reason: text for logs and for people who look at the message. Defaults to "".
    """

    after: float | timedelta | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        after = self.after
        if isinstance(after, timedelta):
            valid = after >= timedelta(0)
        else:
            number = isinstance(after, int | float) and not isinstance(after, bool)
            valid = after is None or (number and math.isfinite(after) and after >= 0)
        if not valid:
            raise Rejected(f"expected after to be seconds or a timedelta, not negative, got: {after!r}")

    @property
    def after_ms(self) -> int | None:
        """The delay in whole milliseconds, rounded up: a retry is never early."""
        if self.after is None:
            return None
        if isinstance(self.after, timedelta):
            return -(-self.after // _MS)
        # To the microsecond first: 0.001 * 3 is slightly more than 0.003, and must not become 4 ms.
        return math.ceil(round(self.after * 1_000, 3))


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Give the message up immediately, and keep it as a dead letter.

    Args:
        reason: text that is shown with the dead letter.
    """

    reason: str


def verdict_of(returned: Any) -> Ack | Retry | DeadLetter:
    """The verdict in a handler's return value; None means Ack.

    Raises:
        Rejected: the value is not a verdict. Nothing is guessed: True or 0 could mean success or failure.
    """
    if returned is None:
        return Ack()
    if isinstance(returned, Ack | Retry | DeadLetter):
        return returned
    hint = ""
    if isinstance(returned, type) and issubclass(returned, Ack | Retry | DeadLetter):
        hint = f"; did you mean {returned.__name__}(...)?"
    elif inspect.isawaitable(returned):
        hint = "; the handler is async and was not awaited"
        if inspect.iscoroutine(returned):
            returned.close()  # it will never run: avoid Python's second, vaguer warning
    raise Rejected(
        f"expected a handler to return None, Ack(), Retry(...) or DeadLetter(...), got: {repr(returned)[:200]}{hint}"
    )


@dataclass(slots=True)
class HandlerOutcome:
    """The result of a delivery.

    Args:
        delivery: the delivery.
        ended: how the delivery ended. When it is settled, the counter of this name in `ConsumerStats` is raised.
        forward: the message to publish in the same step that settles the delivery. Defaults to None: the delivery is
            only acknowledged.
        refusals: how often the broker has refused `forward` for good. Defaults to 0.
        attempt: the row for the attempt history. Defaults to None: no row.
        success: the key under which the store remembers that the message has succeeded. Defaults to None: the store
            remembers nothing.
    """

    delivery: Delivery
    ended: Literal["acknowledged", "retried", "dead", "parked"]
    forward: Message | None = None
    refusals: int = 0
    attempt: Attempt | None = None
    success: str | None = None


class Sink(Protocol):
    """Takes the outcomes of deliveries and has the deliveries settled.

    There are two kinds of sinks. A `Settler` settles the deliveries at the broker. A `SettlerThread` of ordered keys
    first changes the key locks in the store, where this is necessary, and then gives the outcomes to a `Settler`.
    """

    def put(self, outcome: HandlerOutcome) -> None:
        """Take one outcome. Any thread may call it."""
        ...

    def put_all(self, outcomes: Sequence[HandlerOutcome]) -> None:
        """Take several outcomes, in their order. Any thread may call it."""
        ...


class Outcomes:
    """Makes outcomes for one consumer.

    Args:
        group: the consumer group.
        config: see `ConsumerConfig`.
        failure_log: called for each failed attempt.
        shards: the store's number of shards, for the attempt history; None if the id does not decide the shard.
    """

    def __init__(self, group: str, config: ConsumerConfig, failure_log: FailureLog, shards: int | None) -> None:
        self._group = group
        self._config = config
        self._failure_log = failure_log
        self._shards = shards
        self.topic_id_of: Callable[[Delivery], str] | None = None  # set when the broker knows ids of topics
        self.now_ms: Callable[[], int] = now_ms  # epoch ms; a test in virtual time replaces it

    def returned(self, delivery: Delivery, state: RetryState, started_ms: int, value: Any) -> HandlerOutcome:
        """The outcome when the handler returned `value`.

        Raises:
            Rejected: the value is not a verdict.
        """
        match verdict_of(value):
            case Ack():
                success = success_of(self._group, delivery.message, state)
                attempt = self._attempt(delivery, state, started_ms)
                return HandlerOutcome(delivery, "acknowledged", attempt=attempt, success=success)
            case Retry() as retry:
                failure = Failure(message=retry.reason, retry_after_ms=retry.after_ms, verdict="retry")
            case DeadLetter(reason):
                failure = Failure(message=reason, verdict="dead")
        return self.failed(delivery, state, failure, started_ms=started_ms)

    def raised(self, delivery: Delivery, state: RetryState, started_ms: int, error: BaseException) -> HandlerOutcome:
        """The outcome when the handler raised `error`."""
        if issubclass(type(error), Rejected):  # isinstance would ask the error's own `__class__`
            logger.error("consumer.bad_verdict: %s", error)
        failure, print_ = failure_in(error, self.now_ms())
        return self.failed(delivery, state, failure, print_, started_ms, error)

    def failed(
        self,
        delivery: Delivery,
        state: RetryState,
        failure: Failure,
        print_: str | None = None,
        started_ms: int | None = None,
        error: BaseException | None = None,
    ) -> HandlerOutcome:
        """The outcome when the attempt failed or was not made. It contains the record for the retry topic."""
        config = self._config
        topic_id = None if self.topic_id_of is None else self.topic_id_of(delivery)
        forward = failed_message(
            self._group,
            delivery.message,
            state,
            failure,
            print_,
            config.secrets,
            started_ms,
            config.group_topics,
            topic_id,
            traceback_text(error) if error is not None and config.keep_tracebacks else None,
            self.now_ms(),
        )
        seen = delivered_message(self._group, delivery.message, state, config.group_topics)
        self._failure_log.write(seen, forward, state.attempt + 1, failure, error)
        return HandlerOutcome(delivery, "dead" if failure.verdict == "dead" else "retried", forward)

    def _attempt(self, delivery: Delivery, state: RetryState, started_ms: int) -> Attempt | None:
        """The history row of a success after failures. None for a first attempt, or if no history is kept."""
        if not self._config.history or not state.attempt or state.id is None:
            return None
        topic, number = state.original_topic or delivery.message.topic, state.attempt + 1
        shard = releasing_shard(state, number, self._shards)
        return Attempt(state.id_base, topic, number, state.due_ms, started_ms, "ok", None, shard)


def success_of(group: str, message: Message, state: RetryState) -> str | None:
    """The key under which the store remembers the success of `message`; None if it remembers nothing.

    The store remembers only messages that it has released, because only these can have a second copy. It remembers no
    unsigned message, and none whose id is made of its payload, because all messages with equal payloads share this id.
    """
    if not state.passed_the_store or state.unsigned:
        return None
    if state.id == content_id(group, message.value, message.key):
        return None
    return attempts_key(replace(state, consumer_group=group), message)


def failure_in(error: BaseException, at_ms: int | None = None) -> tuple[Failure, str | None]:
    """The failure for an exception, and its fingerprint. Never raises, even if the error's class does.

    `at_ms` is the time of the failure in epoch ms. Defaults to this machine's clock.
    """
    try:
        return failure_of(error, now_ms=now_ms() if at_ms is None else at_ms), fingerprint_of(error)
    except BaseException:  # the properties and `__str__` of the handler's error may raise anything
        return Failure(error_class=_class_name_of(error), message="(the error cannot be described)"), None


def _class_name_of(error: BaseException) -> str:
    try:
        return class_name(type(error))
    except BaseException:  # a metaclass may raise as well
        return "unknown"


def outlived(deliveries: int) -> Failure:
    """The failure of a message over which too many consumers have died."""
    text = f"handed out {deliveries} times, and every consumer died or hung over it"
    return Failure(error_class="poison", message=text, verdict="dead")


def too_late() -> Failure:
    """The failure of a message that was delivered after the time in its `expires-at` header."""
    return Failure(error_class="expired", message="it came too late", verdict="dead")


def expired(expires: bytes | None, clock: Callable[[], int] | None = None) -> bool:
    """Whether the moment in an `expires-at` header has passed. No other value than 1 to 16 digits ever expires.

    `clock` returns epoch ms. Defaults to this machine's clock.
    """
    if expires is None or not expires.isdigit() or len(expires) > 16:  # the year 9999 has 15 digits
        return False
    return int(expires) < (clock or now_ms)()


def now_ms() -> int:
    """Epoch milliseconds by this machine's clock."""
    return time.time_ns() // 1_000_000


def is_suspect(delivery: Delivery, crash_cap: int) -> bool:
    """Whether so many consumers died over this delivery that it must be handled alone."""
    return max(2, min(_SUSPECT_FROM, crash_cap)) <= delivery.deliveries <= crash_cap


class FailureLog:
    """Logs failed attempts, and calls the application's hook for each.

    Args:
        hook: called with the message as the handler saw it, the error (None: the handler returned a verdict or was not
            called) and the number of the attempt. Defaults to none.

    Raises:
        ConfigError: the hook is not callable, or is async: the consumer would not await it.
    """

    def __init__(self, hook: OnFailure | None = None) -> None:
        if hook is not None and (not callable(hook) or inspect.iscoroutinefunction(hook)):
            raise ConfigError(f"expected on_failure to be a plain function, got: {hook!r:.200}: nothing was started")
        self._hook = hook

    def write(
        self, seen: Message, forward: Message, attempt: int, failure: Failure, error: BaseException | None = None
    ) -> None:
        """Log a failed attempt and call the hook.

        Args:
            seen: the message as the handler saw it.
            forward: the record for the retry topic; it carries the id.
            attempt: the number of the attempt.
            failure: what happened.
            error: the exception. Defaults to None: the handler raised none.
        """
        if logger.isEnabledFor(logging.WARNING):
            line = _line(seen, forward, attempt, failure, error)
            last = failure.verdict == "dead"
            shown = error if last or logger.isEnabledFor(logging.DEBUG) else None
            try:
                logger.warning("consumer.failed: %s", line, exc_info=shown)
            except BaseException:  # reading its properties raises
                logger.warning("consumer.failed: %s; its traceback cannot be shown", line)
        if self._hook is not None:
            try:
                self._hook(seen, error, attempt)
            except BaseException:  # a hook must not stop the message
                logger.exception("consumer.on_failure_failed: the hook raised; the message is settled as usual")


def bounded(text: str) -> str:
    """A text from a message or an error, cut to `_TEXT_AT_MOST` characters. The logger escapes it."""
    return text if len(text) <= _TEXT_AT_MOST else f"{text[: _TEXT_AT_MOST - 3]}..."


def _line(seen: Message, forward: Message, attempt: int, failure: Failure, error: BaseException | None) -> str:
    message_id = (forward.header("retry-id") or b"?").decode("utf-8", "replace")
    if failure.error_class:
        what = failure.error_class.rpartition(".")[2] if error is not None else failure.error_class
    else:
        what = "the handler gives it up" if failure.verdict == "dead" else "the handler asks for a retry"
    reason = f"{what}: {failure.message}" if failure.message else what
    following = (
        "it goes to the dead letters, unless the retry service finds that it is a second copy"
        if failure.verdict == "dead"
        else "the retry service decides when it is tried again"
    )
    return f"message {bounded(message_id)} of {bounded(seen.topic)}, attempt {attempt}: {bounded(reason)}; {following}"

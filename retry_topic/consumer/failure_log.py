"""FailureLog: writes one log line for each failed attempt, and calls the application's hook.

A line names message, topic, attempt, error and the next step; it never contains the payload. The retry service decides
the next step and logs its decision itself (`retry_topic.intake`). The traceback is logged at DEBUG, and also when the
attempt is certainly the last one.

The hook and the error's own properties may raise any exception: it neither fails a message nor ends a thread. Threads:
any. Cost: a line below the logger's level costs one check of that level.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable

from retry_topic.message import Message
from retry_topic.policy import Failure
from wheel_sched.errors import ConfigError
from wheel_sched.escaping import logger_of

logger = logger_of("retry_topic.consumer")

OnFailure = Callable[[Message, BaseException | None, int], object]

_TEXT_AT_MOST = 200


class FailureLog:
    """See the module.

    Args:
        hook: called with the message as the handler saw it, the error (None: the handler returned a verdict or was not
            called) and the number of the attempt. Defaults to none.

    Raises:
        ConfigError: the hook is async. The consumer would not await it.
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
                logger.exception("consumer.on_failure_failed: the hook raised; the message goes its way")


def bounded(text: str) -> str:
    """Foreign text of at most `_TEXT_AT_MOST` characters; the logger escapes it."""
    return text if len(text) <= _TEXT_AT_MOST else f"{text[: _TEXT_AT_MOST - 3]}..."


def _line(seen: Message, forward: Message, attempt: int, failure: Failure, error: BaseException | None) -> str:
    message_id = (forward.header("retry-id") or b"?").decode("utf-8", "replace")
    if failure.error_class:
        what = failure.error_class.rpartition(".")[2] if error is not None else failure.error_class
    else:
        what = "the handler gives it up" if failure.verdict == "dead" else "the handler asks for a retry"
    reason = f"{what}: {failure.message}" if failure.message else what
    following = (
        "it goes to the dead letters, unless the retry service knows it for a second copy"
        if failure.verdict == "dead"
        else "the retry service decides when it is tried again"
    )
    return f"message {bounded(message_id)} of {bounded(seen.topic)}, attempt {attempt}: {bounded(reason)}; {following}"

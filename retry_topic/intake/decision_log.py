"""One line of the log for each decision of a retry service: when a failed message is tried again, or why it is dead.

A line names the message by the id that its handler saw, and by the id under which the store has it. It never has the
payload. Retries are logged at INFO, deaths as warnings; lines that nobody reads are not made.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from retry_topic.consumer.failure_log import bounded
from retry_topic.intake.records import Decided, Taken
from wheel_sched.duration import format_duration
from wheel_sched.escaping import logger_of

logger = logger_of("retry_topic.intake")


def log_decisions(entries: Sequence[object], done: Sequence[Taken]) -> None:
    """Log each decision about a failure that was not known."""
    retries = logger.isEnabledFor(logging.INFO)
    for one, taken in zip(entries, done, strict=True):
        if taken.dead is not None:
            if not taken.duplicate:
                _log_death(one, taken)
        elif retries and not taken.duplicate and taken.decision is not None:
            logger.info(
                "intake.retry: message %s of %s, attempt %d: next attempt in %s; stored as %s",
                *_named(one, taken),
                format_duration(getattr(taken.decision, "delay_ms", 0)),
                bounded(taken.id),
            )


def _log_death(one: object, taken: Taken) -> None:
    error = ""
    if isinstance(one, Decided):
        state = one.state
        error = f": {state.error_class or 'no error'}: {state.error_message or ''}".rstrip(": ")
    reason = bounded(f"{taken.dead}{error}")
    logger.warning(
        "intake.dead: message %s of %s, attempt %d: %s; it is a dead letter, stored as %s",
        *_named(one, taken),
        reason,
        bounded(taken.id),
    )


def _named(one: object, taken: Taken) -> tuple[str, str, int]:
    """The id that the consumer's line has as well; an item's id may be longer, see `RetryState.known_as`."""
    seen = (one.record.given.id or one.state.id) if isinstance(one, Decided) else None
    return bounded(seen or taken.id.rpartition(".")[0] or taken.id), bounded(taken.topic), taken.attempt

"""Writes one log line for each decision of the retry service: when a failed message is tried again, or why it is dead.

A line names the message by the id that its handler saw, and the id under which it is stored. It never contains the
payload. Retries are logged at INFO, deaths as warnings. A line that nobody reads is not formatted.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from retry_topic.cases import Case, Taken
from retry_topic.consumer.failure_log import bounded
from wheel_sched.duration import format_duration
from wheel_sched.escaping import logger_of

logger = logger_of("retry_topic.intake")


def log_decisions(cases: Sequence[object], done: Sequence[Taken]) -> None:
    """Log each decision about a record that was not known before."""
    retries = logger.isEnabledFor(logging.INFO)
    for case, taken in zip(cases, done, strict=True):
        if taken.dead is not None:
            if not taken.duplicate:
                _log_death(case, taken)
        elif retries and not taken.duplicate and taken.decision is not None:
            logger.info(
                "intake.retry: message %s of %s, attempt %d: next attempt in %s; stored as %s",
                *_named(case, taken),
                format_duration(getattr(taken.decision, "delay_ms", 0)),
                bounded(taken.id),
            )


def _log_death(case: object, taken: Taken) -> None:
    error = ""
    if isinstance(case, Case):
        state = case.state
        error = f": {state.error_class or 'no error'}: {state.error_message or ''}".rstrip(": ")
    reason = bounded(f"{taken.dead}{error}")
    logger.warning(
        "intake.dead: message %s of %s, attempt %d: %s; it is a dead letter, stored as %s",
        *_named(case, taken),
        reason,
        bounded(taken.id),
    )


def _named(case: object, taken: Taken) -> tuple[str, str, int]:
    """By the id that the consumer's line has, too: an item's id may have more, see `RetryState.known_as`."""
    seen = (case.given.id or case.state.id) if isinstance(case, Case) else None
    return bounded(seen or taken.id.rpartition(".")[0] or taken.id), bounded(taken.topic), taken.attempt

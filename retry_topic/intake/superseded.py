"""Retries that another retry of their key has superseded, by `collapse` or `debounce` (`policy.once_per_key`).

The store decides which of two retries goes out, in the script that stores the second one. Its answer names the first
one. This module notes the answer in the decided records. For each message that is not retried any more, it writes a
line into the log and a row into the attempt history.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from retry_topic.consumer.outcome import bounded
from retry_topic.history import Attempt
from retry_topic.intake.plan import Entry
from retry_topic.intake.records import Decided
from retry_topic.policy import PolicySet
from wheel_sched.escaping import logger_of
from wheel_sched.store import Outcome
from wheel_sched.store.core.schedule import Stored

logger = logger_of("retry_topic.intake")


def note_others(entries: Sequence[Entry], stored: Stored) -> None:
    """Note in each entry which other retry of its key goes out in its place, or whose place it has taken.

    Args:
        entries: the entries whose items were stored, in the order of the items.
        stored: the store's answer.
    """
    for at, other in stored.others.items():
        one = entries[at] if at < len(entries) else None
        if not isinstance(one, Decided):
            continue
        if stored.outcomes[at] is Outcome.SUPERSEDED:
            one.superseded_by = other
        else:
            one.replaced = other


def warn_of_ordering_keys(entries: Iterable[Entry], policies: PolicySet, warned: set[str]) -> None:
    """Report, once for each topic, that collapse and debounce do nothing for messages of ordering keys.

    A message of an ordering key must not be dropped: the key's next messages wait for it.

    Args:
        entries: decided records.
        policies: the policies.
        warned: the topics that were already reported. This function adds to them.
    """
    for one in entries:
        if one.key_lock is None or not isinstance(one, Decided) or one.topic in warned:
            continue
        if policies.for_topic(one.topic).once_per_key is None:
            continue
        warned.add(one.topic)
        logger.error(
            "intake.once_per_key_refused: %s is read in the order of its keys, so collapse or debounce of its policy "
            'has no effect: its messages are retried one by one; set both to "off" for this topic, or read it with '
            'ordering="none"',
            bounded(one.topic),
        )


def rows_of_replaced(entries: Iterable[Entry], now_ms: int) -> Iterator[Attempt]:
    """The history rows of the waiting retries whose places the entries have taken."""
    for one in entries:
        if isinstance(one, Decided) and one.replaced is not None:
            base, _, number = one.replaced.rpartition(".")
            if base and number.isdecimal():
                yield Attempt(base, one.topic, int(number), None, now_ms, "superseded")


def log_superseded(entries: Iterable[Entry]) -> None:
    """Log each message that is not retried any more, because another message of its key is retried instead."""
    for one in entries:
        if not isinstance(one, Decided) or one.duplicate:
            continue
        for gone, stays in ((one.replaced, one.member), (one.superseded_by and one.member, one.superseded_by)):
            if gone and stays:
                logger.info(
                    "intake.superseded: message %s of %s is not retried: %s of the same key is retried in its place",
                    *(bounded(gone), bounded(one.topic), bounded(stays)),
                )

"""Successes: tells the store which messages have succeeded, so that no second copy of them is retried or buried.

Only of messages that have passed the store there can be a second copy that a dispatcher has sent; of all others nothing
is told. It is told before the broker is: a consumer that dies in between has its message handled again, and if that
fails nothing comes of it.

What cannot be told is not: a message must not wait for it, and a copy that fails is then an attempt like any other.

Cost: one call for all that is acknowledged together. One thread: the settler's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from retry_topic.headers import RetryState, content_id
from retry_topic.intake.records import attempts_key
from retry_topic.message import Message
from wheel_sched.escaping import logger_of
from wheel_sched.store import ENDED, DelayStore

logger = logger_of("retry_topic.consumer")

KNOWN_FOR_MS = 3_600_000
"""How long a success is known at least; of a message that has failed before, as long as its attempts are counted."""

_AWAY_S = 5.0
_ASK_S = 60.0  # the store's time is counted on from what it said


def success_of(group: str, message: Message, state: RetryState) -> str | None:
    """What to tell when `message` succeeds; None: nothing.

    An id that was made of a payload is that of many messages: of these nothing is known.
    """
    if not state.passed_the_store or state.unsigned:
        return None
    if state.id == content_id(group, message.value, message.key):
        return None
    return attempts_key(replace(state, consumer_group=group), message)


class Successes:
    """See the module.

    Args:
        store: the one that the group's service takes failed messages into.
    """

    def __init__(self, store: DelayStore) -> None:
        self._store = store
        self._silent_until = 0.0
        self._ahead_ms = 0.0  # of the store's clock over this process's steady one
        self._asked: float | None = None

    def tell(self, keys: Sequence[str]) -> None:
        """These messages have succeeded."""
        if not keys or time.monotonic() < self._silent_until:
            return
        try:
            until_ms = self._now_ms() + KNOWN_FOR_MS
            self._store.remember([(key, ENDED, until_ms) for key in keys])
        except Exception as error:  # whatever it is, what succeeded is acknowledged
            logger.warning("consumer.cannot_tell_success: %d messages: %s", len(keys), error)
            self._silent_until = time.monotonic() + _AWAY_S

    def _now_ms(self) -> int:
        now = time.monotonic()
        if self._asked is None or now - self._asked > _ASK_S or not self._store.ticks:
            self._ahead_ms, self._asked = self._store.now_ms() - now * 1000, now
        return int(now * 1000 + self._ahead_ms)

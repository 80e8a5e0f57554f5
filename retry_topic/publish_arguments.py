"""Checks the arguments of `Connection.publish`, before anything is sent."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from retry_topic.message import Message
from wheel_sched.errors import Rejected
from wheel_sched.store.once_per_key import collapse_ref, debounce_ref

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class LaterArguments(NamedTuple):
    """The arguments that only messages for later have.

    Args:
        once: the key of collapse or debounce and the ref of the item. Defaults to None: neither.
        fair_key: the fair key. Defaults to None: the policy names it.
    """

    once: tuple[str, str] | None = None
    fair_key: str | bytes | None = None


def checked_fair_key(fair_key: object) -> str | bytes | None:
    """Return the fair key. Raises `Rejected` if it is neither text nor bytes nor None."""
    if not isinstance(fair_key, str | bytes | None):
        raise Rejected(f"expected fair_key to be text or bytes, got: {type(fair_key).__name__}; nothing was sent")
    return fair_key


def checked_message(message: Message) -> Message:
    """Return the message. Raises `Rejected` if a part has a wrong type: not every caller uses a type checker."""
    problems = [] if isinstance(message.value, bytes) else [f"value to be bytes, got: {type(message.value).__name__}"]
    if not isinstance(message.key, bytes | None):
        problems.append(f"key to be bytes or None, got: {type(message.key).__name__}")
    pairs = (pair if isinstance(pair, tuple) and len(pair) == 2 else (None, None) for pair in message.headers)
    if not all(isinstance(name, str) and isinstance(content, bytes) for name, content in pairs):
        problems.append("headers to be pairs of text and bytes")
    if problems:
        raise Rejected(f"expected {'; '.join(problems)}; nothing was sent")
    return message


def once_key(collapse: str | None, debounce: str | None, max_wait: float | timedelta) -> tuple[str, str] | None:
    """The key of a message and the ref of its item; None without collapse and debounce."""
    if collapse is not None and debounce is not None:
        raise Rejected("expected collapse or debounce, got both; nothing was sent")
    key = debounce if collapse is None else collapse
    if key is None:
        return None
    if not isinstance(key, str) or not key:
        raise Rejected(f"expected the key of collapse or debounce to be text, got: {key!r}; nothing was sent")
    return key, collapse_ref(key) if debounce is None else debounce_ref(key, span_ms("max_wait", max_wait))


def span_ms(name: str, span: float | timedelta) -> int:
    seconds = span.total_seconds() if isinstance(span, timedelta) else span
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= 3.2e11:
        raise Rejected(f"expected {name} to be seconds from 0 up or a timedelta, got: {span!r}; nothing was sent")
    return -int(-seconds * 1000 // 1)  # up to whole ms: never early


def instant_ms(name: str, instant: datetime) -> int:
    if not isinstance(instant, datetime) or instant.utcoffset() is None:
        raise Rejected(f"expected {name} to be a datetime with a time zone, got: {instant!r}; nothing was sent")
    if instant < _EPOCH:
        raise Rejected(f"expected {name} to be after 1970, got: {instant.isoformat()}; nothing was sent")
    return -((_EPOCH - instant) // timedelta(milliseconds=1))  # up to whole ms

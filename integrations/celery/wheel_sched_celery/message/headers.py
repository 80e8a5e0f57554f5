"""The headers of a task's message that this integration reads or writes.

These are the ETA, the due time of an occurrence of beat, the mark of messages that the store has sent, the fair key,
and the texts of arguments.

The functions are pure, so any thread may call them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from celery.utils.time import maybe_iso8601, maybe_make_aware

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)

# -- the ETA, in milliseconds since 1970


@lru_cache(maxsize=16)  # the same text is read several times
def _plain_ms(text: str) -> int | None:
    """The time, in ms since 1970, of a text with a UTC offset, as Celery writes it; None for any other text.

    This function is ten times faster than kombu's parser.
    """
    try:
        instant = datetime.fromisoformat(text)
        return None if instant.tzinfo is None else int(-((_EPOCH - instant) // _MS))
    except (ArithmeticError, ValueError):
        return None


def instant_ms(value: Any, timezone: Any) -> int | None:
    """The time of an ISO 8601 text or datetime, in ms since 1970, rounded up; None when it cannot be read.

    A value without a time zone is in `timezone`, as in a worker. This integration does not hold a message whose ETA
    cannot be read. It lets Celery send the message, and Celery reports the error.
    """
    if value is None:
        return None
    if isinstance(value, str) and (plain_ms := _plain_ms(value)) is not None:
        return plain_ms
    try:
        instant = maybe_make_aware(maybe_iso8601(value), timezone)
        due_ms = -((_EPOCH - instant) // _MS)
    except (AttributeError, ArithmeticError, TypeError, ValueError):
        return None
    return int(due_ms)


def iso_of(due_ms: int) -> str:
    """The text of an instant as Celery writes it into headers, in UTC."""
    return (_EPOCH + due_ms * _MS).isoformat()


def eta_of(body: Any, headers: Any, timezone: Callable[[], Any]) -> int | None:
    """The due time of a task's message, in ms; None without a readable ETA. In protocol 1 the ETA is in the body."""
    holder = headers if isinstance(headers, dict) and "task" in headers else body
    if not isinstance(holder, dict) or not holder.get("eta") or not holder.get("id"):
        return None
    return instant_ms(holder["eta"], timezone())


# -- the due time of an occurrence of beat

OCCURRENCE: Final = "wheel-sched-due"
"""The header of a task that beat sends: the due time of the occurrence, as Celery writes an ETA.

Such a task has no ETA, unless its entry's options give one. It reads the header by `request.headers[OCCURRENCE]`.
"""


def due_of(headers: Mapping[str, Any]) -> int | None:
    """The due time, in ms, of a held message in protocol 2: its ETA, else that of its beat occurrence; None without."""
    return instant_ms(headers.get("eta") or headers.get(OCCURRENCE), None)


# -- the mark of messages that the store has sent

# Without the mark, a worker with another horizon or clock could take the message over just before the dispatcher
# settles its item, and the task would be lost. The mark names its message (task, retry, ETA), because Celery copies the
# headers of a task into its retries: a mark that was copied into another message does not count.
MARK: Final = "wheel-sched-sent"


def marked(headers: Mapping[str, Any], task_id: str, retries: int) -> dict[str, Any]:
    """The headers, and one more: the mark, which says that the store has sent the message.

    The mark names id, retries and ETA. In protocol 1 the ETA is in the body, so the mark names only id and retries.
    """
    if "task" in headers:
        return {**headers, MARK: _named(headers)}
    return {**headers, MARK: f"{task_id}:{retries}"}


def is_marked(headers: Mapping[str, Any] | None, body: Any) -> bool:
    """Whether the store has sent this message. Then the message has a mark, and the mark names the message itself.

    A mark that Celery copied from another message, as it does for a retry, does not count.
    """
    mark = (headers or {}).get(MARK)
    if mark is None or headers is None:
        return False
    if "task" in headers:
        return bool(mark == _named(headers))
    return isinstance(body, Mapping) and bool(mark == f"{body.get('id')}:{body.get('retries') or 0}")


def _named(headers: Mapping[str, Any]) -> str:
    """The text by which a mark names its message: id, retries and ETA. The ETA is not parsed, so it needs no zone."""
    return f"{headers.get('id')}:{headers.get('retries') or 0}:{headers.get('eta')}"


# -- the fair key: the due tasks of a queue are shared between its fair keys

FAIR_KEY: Final = "wheel-fair-key"


def fair_key_of(headers: Mapping[str, Any]) -> str | None:
    """The fair key in the headers of a task; None without one. A key that is no text counts as none."""
    key = headers.get(FAIR_KEY)
    return key if isinstance(key, str) else None


# -- the texts of arguments, `argsrepr` and `kwargsrepr`

_PLAIN: Final = frozenset((int, float, bool, type(None)))
_FEW: Final = 10
_SHORT: Final = 64  # characters


def plain_repr(value: Any, longest: int) -> str | None:
    """The result of Celery's `saferepr(value, longest)` for plain arguments; None for other arguments.

    For a few numbers and short texts this is `repr`, at a tenth of the cost. Most tasks have such arguments.
    """
    kind = type(value)
    if kind is not tuple and kind is not dict and kind is not list:
        return None
    if len(value) > _FEW:
        return None
    for part in value:
        if type(part) not in _PLAIN and not _is_plain_text(part):
            return None
    if kind is dict:
        for part in value.values():
            if type(part) not in _PLAIN and not _is_plain_text(part):
                return None
    text = repr(value)
    return text if len(text) < longest else None


def _is_plain_text(part: Any) -> bool:
    """Whether `part` is a short text in which neither `repr` nor `saferepr` escapes anything."""
    return type(part) is str and len(part) < _SHORT and part.isprintable() and not ("'" in part or "\\" in part)

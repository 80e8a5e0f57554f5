"""The failed attempts of a message, as the lines of its header `retry-failed-attempts`.

Each line is the JSON list of one failed attempt, oldest first:

    [1,1767225600000,"web-3:41","builtins.ValueError","no such account",4000,"rule 2 (throttled) of payments@3"]

The list has the number, time, process, class and text of the error, chosen delay, and what chose it; see
`FailedAttempt`. The newest `MOST` attempts are kept, fewer if they need more than `MAX_ATTEMPTS_BYTES`. If older
attempts were dropped, the first line says how many.

The intake of the retry service adds the lines. No decision depends on them, and no signature covers them: every client
that can write to the group's topics can forge them. Reading never raises; a line that is not in this form is left out.
All functions are pure.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from retry_topic.message.headers.state import (
    LAST_MS,
    MAX_ATTEMPTS_BYTES,
    MAX_COUNT,
    MAX_MESSAGE_BYTES,
    MAX_PROCESS_BYTES,
    cut,
)
from wheel_sched.duration import LONGEST_MS
from wheel_sched.redacting import is_harmless, redacted_text

MOST = 16
"""How many attempts are kept."""

MAX_TEXT_BYTES = 120
NONE = b"null"
_encode = json.JSONEncoder(ensure_ascii=False).encode


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """One failed attempt of a message. Texts are shortened, and passwords in URLs are hidden.

    Args:
        number: the number of the attempt, from 1. It starts again from 1 when a dead letter is replayed.
        at_ms: epoch ms of the failure.
        process: `host:pid` of the consumer that handled the message; None if the consumer did not write it.
        error_class: fully qualified class of the error; None if the handler raised none.
        text: the error's text, or the reason that the handler gave; None if there is none.
        delay_ms: the delay that was chosen; None if the message became a dead letter.
        chosen_by: what chose the delay, or why the message became a dead letter, in words.
    """

    number: int
    at_ms: int
    process: str | None
    error_class: str | None
    text: str | None
    delay_ms: int | None
    chosen_by: str

    def as_dict(self) -> dict[str, Any]:
        """The attempt as plain data for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class FailedAttempts:
    """What a message's header says about its failed attempts.

    Args:
        attempts: the newest attempts, oldest first. Defaults to none.
        dropped: how many older attempts were dropped. Defaults to 0.
    """

    attempts: tuple[FailedAttempt, ...] = ()
    dropped: int = 0


def with_failed_attempt(lines: str | None, attempt: FailedAttempt) -> str:
    """Append an attempt to the lines of a message. The oldest attempts are dropped if a bound is exceeded.

    Args:
        lines: the lines so far, within their bounds; None if there are none.
        attempt: the attempt to append. Its texts may be of any length and may contain passwords.
    """
    return with_line(
        lines,
        line_of(
            attempt.number,
            attempt.at_ms,
            quoted(attempt.process, MAX_PROCESS_BYTES),
            quoted(attempt.error_class),
            quoted(attempt.text),
            attempt.delay_ms,
            quoted(attempt.chosen_by),
        ).decode(),
    )


def with_line(lines: str | None, line: str) -> str:
    """As `with_failed_attempt`, for an attempt that `line_of` has already written as a line."""
    if not lines:
        return line
    kept = lines.split("\n")
    dropped = _count(kept[0])
    if dropped is not None:
        del kept[0]
    kept.append(line)
    sizes = [len(one.encode(errors="replace")) + 1 for one in kept]
    size, first = sum(sizes) + 8, 0
    while len(kept) - first > MOST or size > MAX_ATTEMPTS_BYTES:  # one line alone always fits
        size -= sizes[first]
        first += 1
    dropped = min((dropped or 0) + first, MAX_COUNT)
    return "\n".join((f"{dropped}", *kept[first:]) if dropped else kept)


def read_failed_attempts(lines: str | None) -> FailedAttempts:
    """Read the lines of a message. If it has none (None or ""), the result has no attempts."""
    rows = lines.split("\n") if lines else []
    dropped = _count(rows[0]) if rows else None
    attempts = [found for row in rows if (found := _read(row)) is not None]
    return FailedAttempts(tuple(attempts[-MOST:]), dropped or 0)


def _count(row: str) -> int | None:
    return min(int(row), MAX_COUNT) if row.isascii() and row.isdigit() and len(row) <= 9 else None


def line_of(
    number: int, at_ms: int, process: bytes, error_class: bytes, text: bytes, delay_ms: int | None, chosen_by: bytes
) -> bytes:
    """The line of an attempt, see `FailedAttempt`. Each of the four texts must be a result of `quoted`."""
    delay = b"null" if delay_ms is None else b"%d" % delay_ms
    return b"[%d,%d,%b,%b,%b,%b,%b]" % (number, at_ms, process, error_class, text, delay, chosen_by)


@lru_cache(maxsize=1024)
def quoted(text: str | None, max_bytes: int = MAX_TEXT_BYTES) -> bytes:
    """A text as JSON: passwords are hidden, control characters become spaces, and it is cut. None becomes "null".

    The cut text has at most `max_bytes` bytes. It has no control characters, so JSON needs at most two bytes for each.
    """
    if text is None:
        return NONE
    text = redacted_text(text)
    if not text.isprintable():
        text = " ".join("".join([one if one.isprintable() else " " for one in text]).split())
    return _encode(cut(text, max_bytes)).encode()


def quoted_bytes(raw: bytes) -> bytes:
    """The text that these bytes are in UTF-8, as `quoted` writes it. Most texts need no look at each character."""
    if len(raw) <= MAX_TEXT_BYTES and raw.isascii():
        text = raw.decode("ascii")
        if '"' not in text and "\\" not in text and text.isprintable() and is_harmless(text):
            return b'"%b"' % raw
    return quoted(cut(raw.decode(errors="replace"), MAX_MESSAGE_BYTES))


def _read(row: str) -> FailedAttempt | None:
    try:
        number, at_ms, process, error_class, text, delay_ms, chosen_by = json.loads(row)
    except (ValueError, TypeError, RecursionError):
        return None
    whole = _is_whole(number, MAX_COUNT) and _is_whole(at_ms, LAST_MS)
    whole = whole and (delay_ms is None or _is_whole(delay_ms, LONGEST_MS)) and isinstance(chosen_by, str)
    if not whole or not all(one is None or isinstance(one, str) for one in (process, error_class, text)):
        return None
    return FailedAttempt(number, at_ms, process, error_class, text, delay_ms, chosen_by)


def _is_whole(value: Any, high: int) -> bool:
    return type(value) is int and 0 <= value <= high

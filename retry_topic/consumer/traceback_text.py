"""The traceback of a failed attempt as a short text, to keep with the message.

    Traceback (most recent call last):
      File "/app/shop/orders.py", line 41, in handle
        charge(order)
      File "/app/shop/payments.py", line 12, in charge
        raise PaymentError("declined") from error
    shop.payments.PaymentError: declined
    Caused by: ConnectionError: refused (File "/app/shop/bank.py", line 7, in post)

The text has source lines of code and the texts of exceptions, but no values of variables. Passwords in URLs and
settings are hidden. Frames of this package, of wheel_sched and of the standard library's threads are left out; a
traceback with no other frames keeps them. Any thread may call `traceback_text`.
"""

from __future__ import annotations

import concurrent.futures
import linecache
import os
import threading
from collections import deque
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import wheel_sched
from retry_topic.message.headers.state import MAX_TRACEBACK_BYTES, cut
from retry_topic.policy import class_name
from retry_topic.policy.failure import error_text
from wheel_sched.redacting import redacted_text

MOST_FRAMES = 20  # the innermost
_MOST_CAUSES = 5
_MOST_WALKED = 10_000  # frames of a very deep recursion
_MAX_TEXT = 1_000  # characters of an exception's text; a cause has a fifth of it
_MAX_LINE = 200  # characters of a source line
_MOST_READ = 2_000
_MOST_KNOWN = 4_096
_PACKAGES = Path(__file__).parents[1], *map(Path, (*wheel_sched.__path__, *concurrent.futures.__path__))
_LEFT_OUT = (*(f"{folder}{os.sep}" for folder in _PACKAGES), threading.__file__)

_known: dict[tuple[str, int, str], str] = {}  # the texts of frames: the same places fail again and again


def traceback_text(error: BaseException) -> str | None:
    """The traceback of an exception, at most `MAX_TRACEBACK_BYTES` of UTF-8. None if the exception cannot be described.

    If the text is too long, outer frames are left out. Never raises, even if the exception's class does.
    """
    try:
        return _text(error)
    except BaseException:  # the error's class is foreign code
        return None


def _text(error: BaseException) -> str:
    frames, left_out = _frames(_traceback(error))
    ends = [_exception(error, _MAX_TEXT), *_causes(error)]
    end = cut("\n".join(ends), MAX_TRACEBACK_BYTES // 2)
    shown: list[str] = []
    room = MAX_TRACEBACK_BYTES - len(end.encode(errors="replace")) - 100
    for place in reversed(frames):
        text = _frame(*place)
        room -= len(text.encode(errors="replace")) + 1
        if room < 0:
            break
        shown.append(text)
    left_out += len(frames) - len(shown)
    head = ["Traceback (most recent call last):"] if shown else []
    if head and left_out:
        head.append(f"  [{left_out} outer calls left out]")
    return cut("\n".join([*head, *reversed(shown), end]), MAX_TRACEBACK_BYTES)


def _traceback(error: BaseException) -> TracebackType | None:
    found: TracebackType | None = BaseException.__dict__["__traceback__"].__get__(error)  # its class may redefine it
    return found


def _linked(error: BaseException, name: str) -> Any:
    return BaseException.__dict__[name].__get__(error)


def _frames(traceback: TracebackType | None) -> tuple[list[tuple[FrameType, int]], int]:
    """The innermost `MOST_FRAMES` frames of the user's code with line numbers, and how many outer ones are left out.

    If the traceback has no frame of the user's code, the function takes the frames of this package instead.
    """
    last: deque[tuple[FrameType, int]] = deque(maxlen=MOST_FRAMES)
    ours: deque[tuple[FrameType, int]] = deque(maxlen=MOST_FRAMES)
    count, count_ours = 0, 0
    while traceback is not None and count + count_ours < _MOST_WALKED:
        place = traceback.tb_frame, traceback.tb_lineno or 0
        if traceback.tb_frame.f_code.co_filename.startswith(_LEFT_OUT):
            ours.append(place)
            count_ours += 1
        else:
            last.append(place)
            count += 1
        traceback = traceback.tb_next
    if not last:
        return [*ours], count_ours - len(ours)
    return [*last], count - len(last)


def _frame(frame: FrameType, line: int) -> str:
    code = frame.f_code
    key = code.co_filename, line, code.co_qualname
    text = _known.get(key)
    if text is None:
        place = f'  File "{code.co_filename[-300:]}", line {line}, in {code.co_qualname[:200]}'
        source = linecache.getline(code.co_filename, line, frame.f_globals)[:_MOST_READ].strip()
        shown = redacted_text(source)[:_MAX_LINE]  # in this order: a cut could hide the end of a password
        text = redacted_text(place) + (f"\n    {shown}" if shown else "")
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[key] = text
    return text


def _exception(error: BaseException, most: int) -> str:
    name = class_name(type(error)).removeprefix("builtins.")[:200]
    text = error_text(error)
    return f"{name}: {redacted_text(text[: 2 * most])[:most]}" if text else name


def _causes(error: BaseException) -> list[str]:
    """One line for each exception that led to `error`, the nearest first.

    If `error` is an exception group, lines about its first members are before these lines.
    """
    lines: list[str] = []
    seen = {id(error)}
    if isinstance(error, BaseExceptionGroup):
        lines += [f"One of {len(error.exceptions)}: {_place(one)}" for one in error.exceptions[:_MOST_CAUSES]]
    while len(seen) <= _MOST_CAUSES:
        cause, why = _linked(error, "__cause__"), "Caused by"
        if cause is None and not _linked(error, "__suppress_context__"):
            cause, why = _linked(error, "__context__"), "While handling"
        if cause is None or id(cause) in seen:
            break
        seen.add(id(cause))
        lines.append(f"{why}: {_place(cause)}")
        error = cause
    return lines


def _place(error: BaseException) -> str:
    """An exception and the place at which it was raised, in one line."""
    text = " ".join(_exception(error, _MAX_TEXT // 5).split())
    frames, _ = _frames(_traceback(error))
    if not frames:
        return text
    frame, line = frames[-1]
    place = _frame(frame, line).partition("\n")[0].strip()
    return f"{text} ({place})"

"""Fingerprints: errors of one kind get the same 12 hex characters, whatever numbers their messages contain.

A fingerprint hashes the error's class, its normalised message and, when it has a traceback, the modules and functions
that raised it. Line numbers are left out, so that an edit further up does not change the fingerprint. Every process on
every machine computes the same fingerprint. Fingerprints group errors and do not identify them: two mistakes with the
same words are one group.

Cost: a few linear regular expressions over at most 1,000 characters. The functions are pure, so any thread may call
them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b
from types import TracebackType

from retry_topic.policy.failure import class_name, error_text

MAX_MESSAGE_CHARS = 1_000
MAX_FRAMES = 5  # the innermost; outer frames belong to the framework and change with it

# Order matters: the specific before the general. Every pattern is linear: no nested repetition, bounded quotes.
_PLACEHOLDERS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.I), "<uuid>"),
    (re.compile(r"(\b[a-z][a-z0-9+.-]{0,20}://[^\s?#'\"<>]{1,500})[?#][^\s'\"<>]*", re.I), r"\1?<query>"),
    # A quote between two letters is an apostrophe.
    (re.compile(r"(?<!\w)'[^'\n]{0,300}'(?!\w)|(?<!\w)\"[^\"\n]{0,300}\"(?!\w)|`[^`\n]{0,300}`"), "<text>"),
    (re.compile(r"\b0x[0-9a-f]+\b", re.I), "<hex>"),
    # Bare hex of eight and more, when both a digit and a letter are in it: "deadbeef" is a word, 12345678 a number.
    (re.compile(r"\b(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]{8,}\b", re.I), "<hex>"),
    (re.compile(r"[-+]?\d+(?:[.,:]\d+)*(?:e[-+]?\d+)?", re.I), "<n>"),
    (re.compile(r"\s+"), " "),
)


def normalise(message: str) -> str:
    """The message with placeholders for the parts that differ between occurrences of one error."""
    text = message[:MAX_MESSAGE_CHARS]
    for pattern, placeholder in _PLACEHOLDERS:
        text = pattern.sub(placeholder, text)
    return text.strip()


def fingerprint(error_class: str, message: str, frames: Sequence[str] = ()) -> str:
    """12 hex characters for an error.

    Args:
        error_class: fully qualified class name.
        message: the text of the error, unchanged.
        frames: `module:function` of the frames that raised it, innermost last. Defaults to none.
    """
    digest = blake2b(digest_size=6)
    for part in (error_class, normalise(message), *frames[-MAX_FRAMES:]):
        data = part.encode(errors="replace")
        digest.update(len(data).to_bytes(4, "big") + data)  # with lengths, so that ("ab", "c") differs from ("a", "bc")
    return digest.hexdigest()


def fingerprint_of(error: BaseException) -> str:
    """The fingerprint of an exception, with the innermost frames of its traceback if it has one."""
    return fingerprint(class_name(type(error)), error_text(error), _frames(error.__traceback__))


def _frames(traceback: TracebackType | None) -> list[str]:
    frames: list[str] = []
    while traceback is not None:
        frame = traceback.tb_frame
        frames.append(f"{frame.f_globals.get('__name__', '?')}:{frame.f_code.co_qualname}")
        traceback = traceback.tb_next
    return frames[-MAX_FRAMES:]

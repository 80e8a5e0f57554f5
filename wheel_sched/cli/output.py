"""Output of commands: data on stdout, comments on stderr, progress on terminals only.

Colour appears on terminals only, and never under NO_COLOR or TERM=dumb. JSON is one object a line.

`say`, `note` and `blame` write all text for people, and escape it line by line. So a message can neither forge a line
nor control the terminal. They do not escape the styles that `paint` adds. Each style contains a random text that the
process draws at its start, so a message cannot imitate a style. JSON is exact and in ASCII.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, TextIO

from wheel_sched.errors import ConfigError, EmbeddedServerError
from wheel_sched.escaping import escaped
from wheel_sched.management.wording import one_line
from wheel_sched.redacting import redacted_text

_MARK = os.urandom(16).hex()
_STYLED = re.compile(rf"\x00{_MARK}([0-9]+);")
_comments: list[Callable[[str], None]] = []  # at most one: the function that writes comments instead of `note`
_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}


def emit(value: Any) -> None:
    """Write a value as one line of JSON to stdout."""
    sys.stdout.write(json.dumps(value) + "\n")


def say(text: str = "") -> None:
    """Write a line of data for people to stdout; control characters are shown as escapes."""
    sys.stdout.write(_shown(text) + "\n")


def comment_by(write: Callable[[str], None] | None) -> None:
    """Let a function write all further comments of this process.

    Args:
        write: takes a comment without styles. None: comments are lines on stderr again.
    """
    _comments[:] = [] if write is None else [write]


def note(text: str) -> None:
    """Write a comment as one line to stderr; control characters are shown as escapes."""
    if _comments:
        _comments[0](_STYLED.sub("", text))
        return
    sys.stderr.write(_shown(text) + "\n")


def blame(program: str, error: BaseException) -> None:
    """Write the program's name and an error to stderr. Each problem has its own line. Passwords are hidden.

    A line break inside a problem is escaped.
    """
    if isinstance(error, EmbeddedServerError):
        note(f"{program}: {redacted_text(f'{error.args[0]}')}")
        for line in error.last_words:
            note(f"  {redacted_text(line)}")
        return
    problems = error.problems if isinstance(error, ConfigError) else [str(error)]
    if len(problems) > 1:
        note(f"{program}: {len(problems)} problems:")
    for problem in problems:
        note(f"- {redacted_text(problem)}" if len(problems) > 1 else f"{program}: {redacted_text(problem)}")


def paint(text: str, style: str, stream: TextIO | None = None) -> str:
    """Return the text in a style, or unchanged when the stream shows no styles. The stream defaults to stdout."""
    target: TextIO = sys.stdout if stream is None else stream
    if not target.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\x00{_MARK}{_CODES[style]};{text}\x00{_MARK}0;"


def _shown(text: str) -> str:
    """Escape the text, and turn the styles that `paint` has added into codes for the terminal."""
    parts = _STYLED.split(text)  # text, code, text, code, ...
    return "".join(f"\x1b[{part}m" if place % 2 else escaped(part) for place, part in enumerate(parts))


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> None:
    """Write a heading and rows to stdout in aligned columns; the columns numbered in `right` are right-aligned."""
    cells = [
        [cell if _MARK in cell else escaped(one_line(cell)) for cell in row] for row in rows
    ]  # escape first: it changes the widths
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    for number, row in enumerate([head, *cells]):
        placed = [
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        line = "  ".join(placed).rstrip()
        say(paint(line, "bold") if number == 0 else line)


class Progress:
    """A line of progress on stderr, rewritten at most ten times a second. Without a terminal it shows nothing."""

    def __init__(self, words: str) -> None:
        self._words = words
        self._shown = sys.stderr.isatty()
        self._last = 0.0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown and self._last:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def __call__(self, done: int) -> None:
        now = time.monotonic()
        if self._shown and now - self._last >= 0.1:
            self._last = now
            sys.stderr.write(f"\r\x1b[K{self._words}: {done:,}")
            sys.stderr.flush()

"""Escapes foreign text for a terminal or a log. The text then stays on one line and cannot control the terminal.

These characters are escaped: control characters (also those of ANSI and C1), line and paragraph separators, direction
marks, zero-width and other format characters, lone surrogates, private-use and unassigned characters. All functions are
pure except `logger_of` and `warn_with_traceback`.
"""

from __future__ import annotations

import logging
import re
import traceback
import unicodedata
from functools import lru_cache

from wheel_sched.redacting import redacted_text

_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_SUSPECT = re.compile(r"[^ -~]")


def escaped(text: str) -> str:
    """The text with an escape for each unsafe character."""
    return text if text.isascii() and text.isprintable() else _SUSPECT.sub(_shown, text)


def _shown(found: re.Match[str]) -> str:
    return _of(found[0])


@lru_cache(maxsize=4096)
def _of(character: str) -> str:
    if unicodedata.category(character) not in _UNSAFE:
        return character
    code = ord(character)
    return _NAMED.get(character) or (
        f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    )


def safe(text: str) -> str:
    """The text with unsafe characters escaped and passwords hidden."""
    return escaped(redacted_text(text))


class _OneLine(logging.Filter):
    """Makes a log record safe: foreign text in it cannot forge a second line, and no password is shown."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(map(_safe_argument, record.args))
        elif record.args:
            record.args = {name: _safe_argument(value) for name, value in record.args.items()}
        if record.exc_info and not record.exc_text:
            text = "".join(traceback.format_exception(*record.exc_info))
            record.exc_text = _indented(text)
        return True


ONE_LINE = _OneLine()


def warn_with_traceback(logger: logging.Logger, traceback_text: str | None, message: str, *args: object) -> None:
    """Log a warning with a traceback that is a text already, such as one from another process.

    Args:
        logger: made by `logger_of`.
        traceback_text: the traceback; None or empty: there is none.
        message: the message, with places for `args` as in `logging`.
        args: the values for it.
    """
    if not logger.isEnabledFor(logging.WARNING):
        return
    path, line, function, _ = logger.findCaller(stacklevel=2)
    record = logger.makeRecord(logger.name, logging.WARNING, path, line, message, args, None, function)
    if traceback_text:
        record.exc_text = _indented(traceback_text)
    logger.handle(record)


def _indented(text: str) -> str:
    return "\n".join(f"  {safe(line)}" for line in text.rstrip("\n").split("\n"))


def _safe_argument(value: object) -> object:
    if value is None or isinstance(value, int | float):
        return value
    try:
        return safe(str(value))
    except BaseException:  # for example the error of a handler, whose `str` may fail in any way
        return "(no text)"


def logger_of(name: str) -> logging.Logger:
    """The logger of this name, with a filter that makes every line safe."""
    logger = logging.getLogger(name)
    logger.addFilter(ONE_LINE)
    return logger

"""Log records as JSON, one object a line, for programs that collect logs.

    {"time": "2026-03-01T12:00:00.250Z", "level": "warning", "logger": "wheel_sched.dispatcher",
     "event": "dispatcher.store_away", "message": "dispatcher.store_away: no answer"}

`event` is the dotted name with which the messages of this project begin. A record whose message begins with no such
name has no `event`. `fields` holds the `extra=` of the logging call, and `exception` the traceback. Texts may come from
strangers. Control characters are escaped before the text becomes JSON, so they are harmless also after a reader has
decoded it. Passwords are hidden. The JSON is in ASCII. Any thread may format.
"""

from __future__ import annotations

import json
import logging
import re
import traceback
from datetime import UTC, datetime
from typing import Any

from wheel_sched.escaping import safe

_EVENT = re.compile(r"([a-z][a-z_]*(?:\.[a-z][a-z_]*)+)(?=: |$)")
# attributes of every record, and those that formatters add, such as `message`
_ORDINARY = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message", "taskName"}


class JsonLines(logging.Formatter):
    """A formatter for the handlers of `logging`: each record becomes one line with a JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        message = _text(record.getMessage)
        value: dict[str, Any] = {
            "time": _utc(record.created),
            "level": record.levelname.lower(),
            "logger": safe(record.name),
        }
        event = _EVENT.match(message)
        if event is not None:
            value["event"] = event[1]
        value["message"] = message
        fields = {safe(name): _plain(field) for name, field in vars(record).items() if name not in _ORDINARY}
        if fields:
            value["fields"] = fields
        trace = _traceback(record)
        if trace:
            value["exception"] = trace
        return json.dumps(value)


def _utc(seconds: float) -> str:
    """The instant in ISO form, with milliseconds, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _plain(value: Any) -> Any:
    """Numbers, booleans and None stay as they are. Everything else becomes safe text, also infinity and NaN."""
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and abs(value) < float("inf")):
        return value
    return _text(lambda: str(value))


def _text(make: Any) -> str:
    """The text that `make` returns, made safe. "(no text)" if `make` raises, as another library's objects may."""
    try:
        return safe(make())
    except BaseException:
        return "(no text)"


def _traceback(record: logging.LogRecord) -> str:
    """The traceback of the record, each of its lines made safe; "" if it has none."""
    text = record.exc_text or ""
    if not text and record.exc_info and record.exc_info[0] is not None:
        text = _text_of(record.exc_info)
    return "\n".join(safe(line) for line in text.split("\n"))


def _text_of(info: Any) -> str:
    try:
        return "".join(traceback.format_exception(*info)).rstrip("\n")
    except BaseException:
        return "(no text)"

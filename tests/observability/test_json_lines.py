"""Log records as JSON lines: which fields a record has, and how foreign text is made safe."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from wheel_sched.escaping import ONE_LINE
from wheel_sched.observability import JsonLines


def written(message: str, *args: object, name: str = "wheel_sched.dispatcher", **about: Any) -> dict[str, Any]:
    """The JSON object of a record. `about` are further attributes of the record."""
    record = logging.LogRecord(name, logging.WARNING, "file.py", 7, message, args, about.pop("exc_info", None))
    vars(record).update(about)
    ONE_LINE.filter(record)
    line = JsonLines().format(record)
    assert "\n" not in line
    assert line.isascii()
    value: dict[str, Any] = json.loads(line)
    return value


def test_a_record_has_time_level_logger_event_and_message() -> None:
    """The time is in UTC, with milliseconds. The event is the dotted name before the first colon."""
    found = written("dispatcher.store_away: %s", "no answer", created=1_772_366_400.25)
    assert found == {
        "time": "2026-03-01T12:00:00.250Z",
        "level": "warning",
        "logger": "wheel_sched.dispatcher",
        "event": "dispatcher.store_away",
        "message": "dispatcher.store_away: no answer",
    }


@pytest.mark.parametrize(
    ("message", "event"),
    [
        ("dispatcher.publish_failed", "dispatcher.publish_failed"),
        ("a timer's callback raised: x", None),
        ("example.org is away", None),
        ("No.event: x", None),
        ("operations.waits: a.b: c", "operations.waits"),
    ],
)
def test_only_a_dotted_name_is_an_event(message: str, event: str | None) -> None:
    """A message of another library has no event, although a word of it may have a dot."""
    assert written(message).get("event") == event


def test_fields_of_the_record_keep_their_types() -> None:
    """What `extra` adds is in `fields`. Numbers stay numbers. Values that JSON does not have become text."""
    found = written("dispatcher.publish_failed", items=3, error="E()", late=0.5, none=None, odd=float("nan"), of=(1, 2))
    assert found["fields"] == {"items": 3, "error": "E()", "late": 0.5, "none": None, "odd": "nan", "of": "(1, 2)"}


def test_an_ordinary_record_has_no_fields() -> None:
    """Attributes that every record has, such as its thread, are not fields."""
    record = logging.getLogger("x").makeRecord("x", logging.INFO, "f", 1, "hello", (), None)
    record.asctime = record.message = record.taskName = "made by another formatter"
    assert "fields" not in json.loads(JsonLines().format(record))


def test_foreign_text_cannot_control_a_terminal_after_decoding() -> None:
    """Control characters and direction marks are escaped in messages, names, fields and tracebacks, so a reader that
    prints the decoded text is safe."""
    hostile = "a\x1b[31m\nb\x9b\u202e"
    try:
        raise ValueError(hostile)
    except ValueError as error:
        info = (ValueError, error, error.__traceback__)
    found = written(f"x.y: {hostile}", name=hostile, fact=hostile, exc_info=info)
    texts = [found["message"], found["logger"], found["fields"]["fact"], *found["exception"].split("\n")]
    assert all(text.isprintable() for text in texts)
    assert any("ValueError: a\\x1b[31m" in line for line in texts)


def test_no_password_is_written() -> None:
    """Passwords in URLs are hidden, also in messages without arguments, and in fields."""
    url = "redis://ada:lovelace@db:6379/0"
    assert "lovelace" not in json.dumps(written(f"no connection to {url}", url=url))


def test_a_value_that_cannot_become_text_does_not_stop_the_log() -> None:
    """An error of `str` in a field or an argument is replaced by a text. The record is written."""

    class Bad:
        def __str__(self) -> str:
            raise RuntimeError("no")

    found = written("x.y: %s", Bad(), bad=Bad())
    assert (found["message"], found["fields"]["bad"]) == ("x.y: (no text)", "(no text)")

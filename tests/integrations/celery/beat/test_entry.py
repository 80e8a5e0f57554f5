"""The stored form of an entry."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from kombu.utils.json import dumps, loads
from wheel_sched_celery.beat.entry import MARK, BeatEntry, decode_entry

from wheel_sched.errors import Rejected

ENTRY = BeatEntry("one", "shop.report", {"kind": "interval", "every_s": 5.0, "relative": False})


def test_an_entry_comes_back_as_it_was() -> None:
    entry = replace(
        ENTRY,
        args=(1, "two", datetime(2026, 1, 1, tzinfo=UTC), Decimal("1.5")),
        kwargs={"day": None},
        options={"queue": "mail", "headers": {"a": 1}},
        catch_up="all",
        catch_up_limit=7,
        due_ms=5,
        earlier=(("abc", 4),),
    )
    item = entry.item()
    assert decode_entry(item.body) == entry
    assert item.due_ms == 5
    item.check()


def test_what_json_cannot_hold_is_refused() -> None:
    with pytest.raises(Rejected, match="'one': its arguments or options cannot be stored"):
        replace(ENTRY, args=(object(),)).item()


@pytest.mark.parametrize(
    "change",
    [
        {"name": ""},
        {"name": "a\nb"},
        {"name": "x" * 201},
        {"task": None},
        {"schedule": "daily"},
        {"kwargs": {"a": 1, 2: 3}},
        {"options": []},
        {"catch_up": "some"},
        {"catch_up_limit": 0},
        {"catch_up_limit": 100_000},
        {"source": "somebody"},
        {"due_ms": -1},
        {"due_ms": True},
        {"paused": 1},
        {"runs": 1.5},
        {"schedule": {"kind": "code"}},
    ],
)
def test_a_malformed_entry_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(Rejected, match="nothing was changed"):
        replace(ENTRY, **change).check()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"C1{}",
        b"B1",
        b"B1[]",
        b"B1{}",
        b"B1null",
        b"B1\xff",
        b'B1{"args": 5}',
        b'B1{"__type__": "x"}',
        b"B1" + b"[" * 5000,
    ],
)
def test_foreign_bytes_are_refused(body: bytes) -> None:
    with pytest.raises(Rejected, match="no entry of beat"):
        decode_entry(body)


def test_a_field_of_a_later_release_is_left_out() -> None:
    values = loads(ENTRY.item().body[len(MARK) :])
    text: str = dumps({**values, "colour": "blue"})
    assert decode_entry(MARK + text.encode()) == ENTRY


def test_the_fingerprint_is_of_the_definition_only() -> None:
    assert replace(ENTRY, runs=9, paused=True, source="code", due_ms=9).fingerprint == ENTRY.fingerprint
    changes: list[dict[str, Any]]
    changes = [{"task": "x"}, {"args": (1,)}, {"options": {"queue": "x"}}, {"catch_up": "all"}, {"schedule": {}}]
    for change in changes:
        assert replace(ENTRY, **change).fingerprint != ENTRY.fingerprint


def test_another_definition_keeps_counters_and_remembers_the_old_one() -> None:
    old = replace(ENTRY, runs=4, due_ms=7, last_ms=6, problem="x", failures=2)
    new = old.redefined(replace(ENTRY, task="other", source="code"), 99)
    assert (new.task, new.source, new.runs, new.due_ms, new.last_ms) == ("other", "code", 4, 7, 6)
    assert (new.changed_ms, new.earlier, new.failures, new.problem) == (99, ((ENTRY.fingerprint, 99),), 0, "")
    back = new.redefined(ENTRY, 100)
    assert back.earlier == ((new.fingerprint, 100),)

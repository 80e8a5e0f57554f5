"""Entries of code and file, and their way into the store."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from celery.beat import BeatLazyFunc, ScheduleEntry
from celery.schedules import BaseSchedule, crontab
from wheel_sched_celery.beat.syncing import OLDER_MS


@pytest.fixture
def beat(make_beat: Callable[..., Any]) -> Any:
    return make_beat(result_expires=None)


def _code(beat: Any, **entries: Any) -> Any:
    beat.app.conf.beat_schedule = {name: {"task": "note", **entry} for name, entry in entries.items()}
    return beat.sync()


def test_entries_of_code_are_stored(beat: Any) -> None:
    synced = _code(
        beat,
        cron={"schedule": crontab("0", "4"), "args": (1,), "options": {"queue": "mail"}, "catch_up": "all"},
        seconds={"schedule": 5.5, "relative": True, "kwargs": {"a": 1}},
        delta={"schedule": timedelta(hours=1)},
    )
    assert synced.added == ["cron", "delta", "seconds"]
    entry = beat.entry("cron")
    assert (entry.source, entry.args, entry.options, entry.catch_up) == ("code", (1,), {"queue": "mail"}, "all")
    assert beat.entry("seconds").schedule == {"kind": "interval", "every_s": 5.5, "relative": True}
    assert (
        _code(
            beat,
            cron={"schedule": crontab("0", "4"), "args": [1], "options": {"queue": "mail"}, "catch_up": "all"},
            seconds={"schedule": 5.5, "relative": True, "kwargs": {"a": 1}},
            delta={"schedule": 3600},
        )
        == type(synced)()
    )


def test_add_periodic_task(beat: Any) -> None:
    beat.app.add_periodic_task(30.0, beat.app.tasks["note"].s("x", a=1), name="every", queue="mail")
    assert beat.sync().added == ["every"]
    entry = beat.entry("every")
    assert (entry.args, entry.kwargs, entry.options) == (("x",), {"a": 1}, {"queue": "mail"})


def test_a_schedule_entry_object(beat: Any) -> None:
    beat.app.conf.beat_schedule = {"one": ScheduleEntry("one", "note", schedule=30, app=beat.app)}
    assert beat.sync().added == ["one"]


def test_the_clean_up_of_a_result_backend(make_beat: Callable[..., Any]) -> None:
    beat = make_beat(result_expires=3600)
    beat.app.backend.supports_autoexpire = False
    assert beat.sync().added == ["celery.backend_cleanup"]
    assert beat.entry("celery.backend_cleanup").schedule["hour"] == "4"


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({}, "expected a schedule"),
        ({"schedule": "daily"}, "expected a schedule"),
        ({"schedule": 0}, "1 ms"),
        ({"schedule": 5, "argz": 1}, "argz"),
        ({"schedule": 5, "task": None}, "task"),
        ({"schedule": 5, "catch_up": "some"}, "catch_up"),
    ],
)
def test_a_wrong_entry_is_named_and_the_others_are_stored(
    beat: Any, entry: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    synced = _code(beat, wrong=entry, right={"schedule": 5})
    assert synced.added == ["right"]
    (problem,) = synced.problems
    assert "'wrong'" in problem
    assert reason in problem
    assert "celery.beat_wrong" in caplog.text


def test_what_json_cannot_hold_stays_in_code(beat: Any) -> None:
    class Moon(BaseSchedule):  # type: ignore[misc]  # celery has no types
        """A class of the app."""

    _code(beat, moon={"schedule": Moon()}, lazy={"schedule": 60, "kwargs": {"at": BeatLazyFunc(lambda: "now")}})
    assert (beat.entry("moon").in_code, beat.entry("moon").schedule["kind"]) == (True, "code")
    assert beat.entry("lazy").in_code
    again = _code(beat, moon={"schedule": Moon()}, lazy={"schedule": 60, "kwargs": {"at": BeatLazyFunc(lambda: "now")}})
    assert (again.changed, again.older) == ([], [])
    beat.entries.pause("moon")
    beat.run_until(beat.now_ms + 60_000)
    assert beat.sent[0].headers["kwargsrepr"] == "{'at': 'now'}"


def test_newer_code_wins_and_older_code_does_not_fight_back(beat: Any, caplog: pytest.LogCaptureFixture) -> None:
    old, new = {"schedule": 60}, {"schedule": 30}
    _code(beat, one=old)
    assert _code(beat, one=new).changed == ["one"]
    for _ in range(3):  # workers with old code that restart
        with caplog.at_level(logging.WARNING):
            assert _code(beat, one=old).older == ["one"]
    assert "celery.beat_older" in caplog.text
    assert beat.entry().schedule["every_s"] == 30
    assert _code(beat, one=new) == type(_code(beat, one=new))()
    beat.pass_ms(OLDER_MS)
    assert _code(beat, one=old).changed == ["one"]  # a deliberate return to old code
    assert _code(beat, one=new).older == ["one"]
    assert beat.sync(force=True).changed == ["one"]


def test_what_somebody_set_at_run_time_stays_until_the_code_changes(beat: Any) -> None:
    _code(beat, one={"schedule": 60})
    beat.entries.replace(beat.entries.make("one", "note", 10))
    beat.pass_ms(2 * OLDER_MS)
    assert _code(beat, one={"schedule": 60}).older == ["one"]
    assert _code(beat, one={"schedule": 45}).changed == ["one"]
    assert beat.entry().source == "code"


def test_a_removed_entry_does_not_come_back(beat: Any, caplog: pytest.LogCaptureFixture) -> None:
    _code(beat, one={"schedule": 60})
    assert beat.entries.remove("one")
    for schedule in (60, 30):
        assert _code(beat, one={"schedule": schedule}).removed == ["one"]
    assert "celery.beat_removed" in caplog.text
    assert beat.run_until(beat.now_ms + 300_000) == []
    assert beat.sync(force=True).changed == ["one"]
    assert beat.entries.get("one").state == "waiting"


def test_force_brings_an_unchanged_entry_back(beat: Any) -> None:
    """A removed entry whose definition is still that of the code runs again after a forced synchronization."""
    _code(beat, one={"schedule": 60})
    assert beat.entries.remove("one")
    assert beat.sync(force=True).resumed == ["one"]
    assert beat.entries.get("one").state == "waiting"
    assert beat.run_until(beat.now_ms + 60_000) != []


def test_an_entry_that_is_gone_from_the_code_goes_on_and_is_reported(
    beat: Any, caplog: pytest.LogCaptureFixture
) -> None:
    _code(beat, one={"schedule": 60}, two={"schedule": 60})
    beat.add("three", 60)
    assert _code(beat, two={"schedule": 60}).gone == ["one"]
    assert "celery.beat_gone: entry 'one'" in caplog.text
    assert [stored.name for stored in beat.entries.gone()] == ["one"]
    assert len(beat.run_until(beat.now_ms + 60_000)) == 3
    assert beat.entries.remove("one")
    assert beat.entries.get("one") is None


def test_a_paused_entry_stays_paused(beat: Any) -> None:
    _code(beat, one={"schedule": 60})
    beat.entries.pause("one")
    _code(beat, one={"schedule": 30})
    assert beat.entries.get("one").state == "paused"


def test_entries_of_a_file(make_beat: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "beat.toml"
    beat = make_beat({"beat_file": path}, result_expires=None)
    path.write_text(
        """
        [beat.nightly]
        task = "note"
        schedule = "0 4 * * *"
        tz = "Europe/Berlin"
        args = [1]
        options = {queue = "mail"}
        catch_up = "skip"
        [beat."often & on"]
        task = "note"
        schedule = 2.5
        [beat.wrong]
        task = "note"
        schedule = "0 4 * *"
        [beat.odd]
        task = "note"
        schedule = "5s"
        colour = "blue"
        """
    )
    beat.app.conf.beat_schedule = {"nightly": {"task": "other", "schedule": 5}}
    synced = beat.sync()
    assert synced.added == ["nightly", "often & on"]
    assert len(synced.problems) == 2
    assert "'wrong' of the file" in synced.problems[0]
    assert "unknown keys colour" in synced.problems[1]
    entry = beat.entry("nightly")
    assert (entry.source, entry.task, entry.schedule["tz"], entry.args) == ("file", "note", "Europe/Berlin", (1,))
    assert "celery.beat_twice" in caplog.text
    path.write_text("[beat")
    assert "cannot be read" in beat.sync().problems[0]
    assert beat.entry("often & on").schedule["every_s"] == 2.5


def test_an_entry_that_an_older_release_buried_comes_back(beat: Any) -> None:
    """`sync` resumes entries that an older release made dead letters, because it could not read them. An entry that
    died for another reason stays dead.
    """
    _code(beat, one={"schedule": 60})
    beat.entries.add(beat.entries.make("elsewhere", "note", 60, source="code"))
    unread = "the body (9 bytes) has neither the neutral form nor the push form; nothing was changed"
    for name in ("late", "poison"):
        beat.add(name, 60)
    for name in ("elsewhere", "late", "one", "poison"):
        item = beat.entry(name).item()
        beat.store.cancel([item.id])
        beat.store.bury([(item, "its lease ran out 5 times" if name == "poison" else unread)])
    assert sorted(beat.sync().resumed) == ["elsewhere", "late", "one"]
    assert beat.sync().resumed == []
    states = {name: beat.entries.get(name).state for name in ("elsewhere", "late", "one", "poison")}
    assert states == {"elsewhere": "waiting", "late": "waiting", "one": "waiting", "poison": "failed"}
    assert sorted(beat.run_until(beat.now_ms + 60_000)) == ["2026-03-10T12:01:00"] * 3


def test_what_the_code_adds_when_the_app_is_finalized(beat: Any) -> None:
    def add(sender: Any, **_: Any) -> None:
        sender.add_periodic_task(30.0, sender.signature("note"), name="late")

    beat.app.on_after_finalize.connect(add, weak=False)
    assert beat.sync().added == ["late"]


def test_a_run_time_form_of_an_entry_of_code_stays_removed_too(beat: Any) -> None:
    _code(beat, one={"schedule": 60})
    beat.entries.replace(beat.entries.make("one", "note", 10))
    beat.entries.remove("one")
    assert beat.entries.get("one").state == "removed"
    assert beat.sync().removed == ["one"]


def test_if_the_code_cannot_be_imported_a_removed_entry_is_remembered(
    beat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _code(beat, one={"schedule": 60})
    beat.app.conf.beat_schedule = {}
    monkeypatch.setattr(beat.app.loader, "import_default_modules", lambda: 1 / 0)
    assert beat.entries.gone() == []
    assert beat.entries.remove("one")
    assert beat.entries.get("one").state == "removed"


def test_another_time_zone_of_the_app_moves_its_crontabs(beat: Any, make_beat: Callable[..., Any]) -> None:
    moved = make_beat(result_expires=None, timezone="Asia/Kolkata")
    moved.wheel._store, moved.entries._store = beat.store, beat.store
    entries = {"cron": {"schedule": crontab("0", "4")}, "plain": {"schedule": 60}}
    _code(beat, **entries)
    assert beat.entry("cron").due_ms == beat.ms_of("2026-03-11T04:00:00")
    assert _code(moved, **entries).changed == ["cron"]
    assert beat.entry("cron").due_ms == beat.ms_of("2026-03-10T22:30:00")
    assert _code(beat, **entries).older == ["cron"]

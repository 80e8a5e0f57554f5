"""Schedules and their stored forms."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery.schedules import BaseSchedule, crontab, schedule
from wheel_sched_celery.beat import schedules
from wheel_sched_celery.beat.next_due import next_due_ms
from wheel_sched_celery.beat.schedules import (
    form_of,
    in_words,
    register_kind,
    schedule_from,
    schedule_from_text,
    schedule_of,
)

from wheel_sched.errors import Rejected


class Moon(BaseSchedule):  # type: ignore[misc]  # celery has no types
    """A class of an app."""


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (schedule(timedelta(seconds=30)), "every 30s"),
        (schedule(0.25, relative=True), "every 0.25s, rounded to whole units"),
        (crontab("0", "4", "mon-fri"), "0 4 * * mon-fri"),
        (crontab(0, {3, 1}), "0 1,3 * * *"),
    ],
)
def test_a_form_leads_back_to_its_schedule(beat: Any, value: Any, words: str) -> None:
    form = json.loads(json.dumps(form_of(value, beat.app)))
    again = schedule_of(form, beat.app)
    assert type(again) is type(value)
    assert again == value
    assert getattr(again, "relative", None) == getattr(value, "relative", None)
    assert in_words(form) == words


def test_a_solar_schedule_has_a_form(beat: Any) -> None:
    form = form_of(schedule_from_text("solar sunrise 52.5 13.4", beat.app), beat.app)
    assert form == {"kind": "solar", "event": "sunrise", "lat": 52.5, "lon": 13.4}


def test_a_crontab_keeps_a_time_zone_of_its_own(beat: Any) -> None:
    made = schedule_from_text("0 4 * * *", beat.app, "Europe/Berlin")
    form = form_of(made, beat.app)
    assert form["tz"] == "Europe/Berlin"
    assert str(schedule_of(form, beat.app).tz) == "Europe/Berlin"
    plain = crontab("0", "4", app=beat.app)
    assert plain.tz is not None  # Celery keeps it in the object from now on
    assert "tz" not in form_of(plain, beat.app)


def test_what_only_code_can_say_has_the_form_code(beat: Any) -> None:
    for value in (Moon(), crontab(nowfun=lambda: datetime.now(UTC)), schedule(5, nowfun=lambda: datetime.now(UTC))):
        form = form_of(value, beat.app)
        assert form["kind"] == "code"
        assert " at 0x" not in str(form)
        with pytest.raises(Rejected, match="only in the code"):
            schedule_of(form, beat.app)


def test_an_app_gives_its_class_a_form(beat: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "_KINDS", dict(schedules._KINDS))
    register_kind("moon", Moon, lambda _: {"phase": "full"}, lambda form: Moon())
    form = form_of(Moon(), beat.app)
    assert form == {"kind": "moon", "phase": "full"}
    assert type(schedule_of(form, beat.app)) is Moon
    with pytest.raises(Rejected, match="belongs to another class"):
        register_kind("crontab", Moon, lambda _: {}, lambda _: Moon())


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"kind": ["crontab"]},
        {"kind": "os.system"},
        {"kind": "crontab", "minute": "99"},
        {"kind": "crontab", "minute": 5},
        {"kind": "crontab", "minute": "0," * 400},
        {"kind": "crontab", "day_of_month": "30", "month_of_year": "2"},
        {"kind": "crontab", "tz": "../../etc/passwd"},
        {"kind": "crontab", "tz": "Mars/North"},
        {"kind": "interval"},
        {"kind": "interval", "every_s": 0},
        {"kind": "interval", "every_s": "5"},
        {"kind": "interval", "every_s": 1e300},
        {"kind": "interval", "every_s": float("nan")},
        {"kind": "interval", "every_s": True},
    ],
)
def test_a_malformed_form_is_refused(beat: Any, form: dict[str, Any]) -> None:
    with pytest.raises(Rejected, match="nothing was changed"):
        next_due_ms(schedule_of(form, beat.app), 0)  # before 5.7 Celery notices an impossible date only here


@pytest.mark.parametrize("text", ["", "0 4 * *", "solar sunrise north east", "now", "-5s", "0s", "70 4 * * *"])
def test_a_text_that_is_no_schedule_is_refused(beat: Any, text: str) -> None:
    with pytest.raises(Rejected, match="nothing was changed"):
        schedule_from_text(text, beat.app)


@pytest.mark.parametrize("value", [None, True, "x", 0, -1, timedelta(0), object()])
def test_a_value_that_is_no_schedule_is_refused(beat: Any, value: Any) -> None:
    with pytest.raises(Rejected, match="nothing was changed"):
        schedule_from(value, beat.app)


def test_a_text_of_cron_and_of_a_duration(beat: Any) -> None:
    assert schedule_from_text("0 4 * * 1", beat.app) == crontab("0", "4", "1")
    assert schedule_from_text("90s", beat.app) == schedule(90)

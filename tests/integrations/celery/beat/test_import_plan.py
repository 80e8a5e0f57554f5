"""What an import makes of entries of redbeat and django-celery-beat: nothing is lost, nothing fires twice."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from celery.schedules import crontab, schedule
from wheel_sched_celery.beat.importing.django_tables import read_django
from wheel_sched_celery.beat.importing.foreign_entry import ForeignEntry
from wheel_sched_celery.beat.importing.plan import ImportStep, carry_out, plan_import
from wheel_sched_celery.management import HeldTasks

RECORDED = Path(__file__).parent / "recorded"
HOUR_MS = 3_600_000


def foreign(name: str = "one", value: Any = None, **rest: Any) -> ForeignEntry:
    return ForeignEntry(name, "note", crontab(minute="0") if value is None else value, **rest)


def only(beat: Any, entry: ForeignEntry, **options: Any) -> ImportStep:
    (step,) = plan_import(beat.entries, [entry], **options)
    return step


def apply(beat: Any, entry: ForeignEntry, **options: Any) -> ImportStep:
    """Import one entry. Fails unless it works."""
    step = only(beat, entry, **options)
    assert [why for _, why in carry_out(beat.entries, [step])] == [""]
    return step


def test_an_entry_goes_on_from_its_last_run(beat: Any) -> None:
    """The next run after the import follows the last run before it: none is repeated and none is left out. The clock of
    the test shows 12:00.
    """
    apply(beat, foreign(last_run_ms=beat.now_ms - HOUR_MS // 2))
    entry = beat.entry()
    assert (entry.due_ms, entry.last_ms) == (beat.now_ms, beat.now_ms - HOUR_MS // 2)
    assert (entry.task, entry.source, entry.paused) == ("note", "run-time", False)


def test_what_was_due_since_the_other_scheduler_stopped_is_due_here(beat: Any) -> None:
    """The first missed time is due, and the catch-up policy decides about all missed times, as after any pause."""
    step = apply(beat, foreign(last_run_ms=beat.now_ms - 5 * HOUR_MS + 1))
    assert "the catch-up policy decides" in step.words
    assert beat.entry().due_ms == beat.now_ms - 4 * HOUR_MS


def test_an_interval_counts_from_its_last_run(beat: Any) -> None:
    """The next run of an interval entry is one interval after its last run, as in Celery."""
    apply(beat, foreign(value=schedule(3600), last_run_ms=beat.now_ms - 600_000))
    assert beat.entry().due_ms == beat.now_ms + 3_000_000


def test_a_crontab_keeps_its_zone(beat: Any) -> None:
    """An imported crontab may have another time zone than the app."""
    value = crontab(minute="0", hour="4")
    value.tz = ZoneInfo("Asia/Kolkata")
    apply(beat, foreign(value=value))
    assert beat.entry().schedule["tz"] == "Asia/Kolkata"
    assert beat.entry().due_ms == int(datetime(2026, 3, 10, 22, 30, tzinfo=UTC).timestamp() * 1000)


def test_a_disabled_entry_is_paused(beat: Any) -> None:
    """A disabled entry is imported as paused."""
    apply(beat, foreign(paused=True, last_run_ms=beat.now_ms - 1))
    assert beat.entries.get("one").state == "paused"


def test_arguments_and_options_are_kept(beat: Any) -> None:
    """An imported entry has all its arguments and options. A date in them is still a date."""
    when = datetime(2100, 1, 1, tzinfo=UTC)
    apply(beat, foreign(args=(1, "a"), kwargs={"at": when}, options={"queue": "mail", "expires": when}))
    entry = beat.entry()
    assert (entry.args, entry.kwargs, entry.options) == ((1, "a"), {"at": when}, {"queue": "mail", "expires": when})


def test_a_start_time_is_the_first_due_time(beat: Any) -> None:
    """An interval is first due at its start time, and a crontab at its first time after that. If the start time has
    passed, the entry is due.
    """
    starts_ms = beat.now_ms + 90 * 60_000
    apply(beat, foreign("interval", schedule(60), starts_ms=starts_ms))
    apply(beat, foreign("crontab", starts_ms=starts_ms))
    apply(beat, foreign("passed", starts_ms=beat.now_ms - 90 * 60_000))
    assert beat.entry("interval").due_ms == starts_ms
    assert beat.entry("crontab").due_ms == beat.now_ms + 2 * HOUR_MS
    assert beat.entry("passed").due_ms == beat.now_ms - HOUR_MS


def test_an_import_can_be_repeated(beat: Any) -> None:
    """A second import skips every entry, also after the entry has run here."""
    found = foreign(last_run_ms=beat.now_ms - 1)
    apply(beat, found)
    assert (only(beat, found).action, only(beat, found).words) == ("skip", "is here already")
    beat.pass_ms(HOUR_MS)
    assert only(beat, found).action == "skip"


def test_another_definition_is_replaced_only_when_asked(beat: Any) -> None:
    """An import replaces an entry that is here already only with `--change`, because the entry here may be newer."""
    beat.add("one", 60)
    step = only(beat, foreign(last_run_ms=1))
    assert (step.action, "--change" in step.words) == ("skip", True)
    apply(beat, foreign(last_run_ms=1), change=True)
    assert beat.entry().schedule["kind"] == "crontab"


def test_an_entry_of_the_code_goes_on_from_its_last_run(make_beat: Any) -> None:
    """redbeat also stores entries that the app's code defines. If a worker has added such an entry here and it has not
    run, the import gives it its last run.
    """
    beat = make_beat(beat_schedule={"one": {"task": "note", "schedule": 3600}, "two": {"task": "note", "schedule": 60}})
    beat.entries.add(beat.entries.make("one", "note", 3600, source="code"))
    found = foreign(value=schedule(3600), last_run_ms=beat.now_ms - 600_000)
    assert apply(beat, found).action == "rhythm"
    assert (beat.entry().due_ms, beat.entry().last_ms) == (beat.now_ms + 3_000_000, beat.now_ms - 600_000)
    assert only(beat, found).action == "skip"
    apply(beat, foreign("two", schedule(60), last_run_ms=beat.now_ms - 1))
    assert beat.entry("two").source == "code"
    assert "the code of the app" in only(beat, foreign("two", schedule(61))).words


def test_what_cannot_be_imported_says_why(beat: Any) -> None:
    """The reasons: the reader found a problem, the arguments have no form in JSON, or the entry has ended or was
    removed here.
    """
    assert only(beat, ForeignEntry("bad", problem="it is bad")).words == "it is bad"
    step = only(beat, foreign(args=(object(),)))
    assert (step.action, "cannot be stored" in step.words) == ("fail", True)
    over = only(beat, foreign(options={"expires": datetime(2020, 1, 1, tzinfo=UTC)}))
    assert (over.action, "it ended at 2020" in over.words) == ("skip", True)


def test_an_entry_that_was_removed_here_does_not_come_back(make_beat: Any) -> None:
    """An import skips an entry that somebody has removed here."""
    beat = make_beat(beat_schedule={"one": {"task": "note", "schedule": 3600}})
    beat.entries.add(beat.entries.make("one", "note", 3600, source="code"))
    beat.entries.remove("one")
    assert "somebody removed it" in only(beat, foreign(value=schedule(3600))).words


def test_an_entry_that_runs_once_becomes_a_task_with_an_eta(beat: Any) -> None:
    """A second import finds the task again. If the entry expires after some seconds, these count from the ETA."""
    eta = datetime(2100, 1, 1, tzinfo=UTC)
    at_ms = int(eta.timestamp() * 1000)
    found = foreign(once=True, once_ms=at_ms, args=(7,), options={"queue": "mail", "expires": 60})
    assert apply(beat, found).action == "task"
    (waiting,) = HeldTasks(beat.app).select()
    assert (waiting.name, waiting.eta_ms, waiting.queue) == ("note", at_ms, "mail")
    assert datetime.fromisoformat(waiting.headers["expires"]) == eta + timedelta(minutes=1)
    assert (only(beat, found).action, "waits here already" in only(beat, found).words) == ("skip", True)
    late = only(beat, foreign(once=True, once_ms=beat.now_ms))
    assert (late.action, "send its task yourself" in late.words) == ("fail", True)
    assert only(beat, foreign(once=True, paused=True)).action == "skip"


def test_a_one_off_with_a_schedule_runs_when_it_is_due(beat: Any) -> None:
    """An entry that runs once and has a schedule becomes one task, which is sent at the first due time."""
    step = apply(beat, foreign(once=True, value=schedule(HOUR_MS / 1000), last_run_ms=beat.now_ms - 60_000))
    assert step.once_ms == beat.now_ms + HOUR_MS - 60_000
    assert beat.entries.get("one") is None


def test_all_that_django_has_is_named(beat: Any) -> None:
    """Each recorded entry is imported, skipped or refused with a reason, and none is left out."""
    found = read_django(str(RECORDED / "django.json"))
    steps = {step.name: step for step in plan_import(beat.entries, found)}
    actions = {name: step.action for name, step in steps.items() if name != "sundown"}  # which needs ephem
    assert actions == {
        "asleep": "add",
        "celery.backend_cleanup": "add",
        "every 10 s": "add",
        "from 2100": "add",
        "new year": "task",
        "nightly": "add",
        "once soon": "task",
        "over": "skip",
        "quick": "fail",
        "until 2100": "add",
        "was once": "fail",
    }
    assert [why for _, why in carry_out(beat.entries, list(steps.values())) if why] == []
    assert beat.entry("nightly").options["headers"] == {"team": "ops"}
    assert {step.action for step in plan_import(beat.entries, found)} <= {"skip", "fail", "task"}
    assert steps["nightly"].as_dict()["schedule"] == "30 2 * * * Europe/Berlin"
    assert timedelta(milliseconds=steps["new year"].as_dict()["due_ms"]).days > 365 * 100

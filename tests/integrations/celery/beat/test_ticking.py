"""Ticks in virtual time: what is sent, when the entry is due next, and what becomes of missed occurrences."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from celery.beat import BeatLazyFunc, ScheduleEntry, Scheduler
from celery.schedules import crontab, schedule
from wheel_sched_celery.beat.entry import item_id_of
from wheel_sched_celery.beat.occurrence import RecordingProducer
from wheel_sched_celery.beat.ticking import ATTEMPTS, ATTEMPTS_ELSEWHERE, Policy, decide

from wheel_sched.errors import NotDone
from wheel_sched.store.core.items import Outcome

MINUTE_MS = 60_000
HOUR_MS = 3_600_000


@pytest.fixture(params=[1, 3], ids=["one-shard", "three-shards"])
def beat(request: pytest.FixtureRequest, make_beat: Callable[..., Any]) -> Any:
    return make_beat(shards=request.param, timezone="Europe/Berlin")


def _nothing(*args: Any) -> None:
    """Does nothing."""


def test_every_occurrence_is_sent_once(beat: Any) -> None:
    beat.add("one", "*/20 * * * *")
    assert beat.run_until(beat.now_ms + HOUR_MS) == [f"2026-03-10T{at}:00" for at in ("12:20", "12:40", "13:00")]
    entry = beat.entry()
    assert (entry.runs, entry.missed, entry.last_ms) == (3, 0, beat.now_ms)
    assert len({task.task_id for task in beat.sent}) == 3


def test_an_interval_keeps_its_rhythm_when_workers_are_late(beat: Any) -> None:
    first_ms = beat.add("one", 60).due_ms
    beat.pass_ms(MINUTE_MS + 700)
    beat.tick()
    assert beat.entry().due_ms == first_ms + MINUTE_MS


def test_a_day_with_a_change_of_the_clock(beat: Any) -> None:
    beat.now_ms = beat.ms_of("2026-03-28T12:00:00")
    beat.add("one", "30 2 * * *")
    beat.add("two", 7200)
    sent = beat.run_until(beat.now_ms + 24 * HOUR_MS)
    assert sent.count("2026-03-29T01:30:00") == 1
    assert len(sent) == 13


def test_the_message_is_that_of_celery(beat: Any) -> None:
    options = {"queue": "mail", "priority": 3, "expires": 60, "headers": {"mine": 1}}
    beat.add("one", 60, args=(1,), kwargs={"a": "b"}, options=options)
    beat.run_until(beat.now_ms + MINUTE_MS)
    (task,) = beat.sent
    assert (task.name, task.queue, task.routing_key, task.priority) == ("note", "mail", "mail", 3)
    headers = task.headers
    assert headers["id"] == task.task_id == headers["root_id"] == task.properties["correlation_id"]
    assert (headers["mine"], headers["celery_beat_task"], headers["periodic_task_name"]) == (1, True, "one")
    assert headers["wheel-sched-due"] == "2026-03-10T12:01:00+00:00"
    assert (headers["eta"], headers["ignore_result"], headers["argsrepr"]) == (None, False, "[1]")
    assert task.properties["expiration"] == "60000"
    assert beat.entry().options == options


@pytest.mark.parametrize("options", [{}, {"queue": "mail", "priority": 3, "headers": {"mine": 1}, "shadow": "s"}])
def test_the_message_is_the_one_that_stock_beat_sends(beat: Any, options: dict[str, Any]) -> None:
    beat.add("one", 60, args=(1,), kwargs={"a": "b"}, options=options)
    beat.run_until(beat.now_ms + MINUTE_MS)
    (ours,) = beat.sent
    recorder = RecordingProducer(beat.app, ours.eta_ms)
    stock = ScheduleEntry("one", "note", schedule=60, args=(1,), kwargs={"a": "b"}, options=options, app=beat.app)
    Scheduler(beat.app, lazy=True).apply_async(stock, producer=recorder, advance=False)
    (theirs,) = recorder.tasks
    own = {"periodic_task_name", "wheel-sched-due", "celery_beat_task"}  # the last one only since Celery 5.7
    ids = {"id", "root_id", "correlation_id"}
    for one, other in ((ours.headers, theirs.headers), (ours.properties, theirs.properties)):
        assert {key: value for key, value in one.items() if key not in own | ids} == {
            key: value for key, value in other.items() if key not in own | ids
        }
    assert (ours.body, ours.exchange, ours.routing_key, ours.priority, ours.declare) == (
        *(theirs.body, theirs.exchange, theirs.routing_key, theirs.priority, theirs.declare),
    )


def test_a_task_that_is_not_registered_is_sent_by_name(beat: Any) -> None:
    beat.entries.add(beat.entries.make("one", "elsewhere.task", 60, options={"queue": "far"}))
    beat.run_until(beat.now_ms + MINUTE_MS)
    assert [(task.name, task.queue) for task in beat.sent] == [("elsewhere.task", "far")]


def test_an_occurrence_has_the_same_id_in_every_process(beat: Any, make_beat: Callable[..., Any]) -> None:
    other = make_beat(shards=beat.store.shards)
    for one in (beat, other):
        one.add("one", 60)
        one.run_until(one.now_ms + 3 * MINUTE_MS)
    assert [task.task_id for task in beat.sent] == [task.task_id for task in other.sent]


def test_a_countdown_counts_from_the_occurrence(beat: Any) -> None:
    beat.add("one", 3600, options={"eta": "2026-03-10T14:30:00+00:00"})
    assert beat.run_until(beat.now_ms + HOUR_MS + MINUTE_MS) == []
    beat.entries.pause("one")
    assert beat.run_until(beat.now_ms + 3 * HOUR_MS) == ["2026-03-10T14:30:00"]


@pytest.mark.parametrize(
    ("policy", "dues", "missed"),
    [
        (Policy("latest", 100, None), [4], 4),
        (Policy("skip", 100, 60_000), [4], 4),
        (Policy("skip", 100, 20_000), [], 5),
        (Policy("all", 100, None), [0, 1, 2, 3, 4], 0),
        (Policy("all", 2, None), [3, 4], 3),
        (Policy("all", 100, 100_000), [3, 4], 3),
    ],
)
@pytest.mark.parametrize("value", [schedule(60), crontab()], ids=["interval", "crontab"])
def test_what_becomes_of_missed_occurrences(
    beat: Any, value: Any, policy: Policy, dues: list[int], missed: int
) -> None:
    value.app = beat.app
    decision = decide(value, beat.now_ms, beat.now_ms + 4 * MINUTE_MS + 30_000, policy)
    assert decision.dues_ms == tuple(beat.now_ms + number * MINUTE_MS for number in dues)
    assert (decision.missed, decision.next_ms) == (missed, beat.now_ms + 5 * MINUTE_MS)


def test_all_missed_occurrences_are_sent_a_few_a_tick(beat: Any, caplog: pytest.LogCaptureFixture) -> None:
    beat.add("one", 60, catch_up="all", catch_up_limit=12)
    beat.pass_ms(20 * MINUTE_MS)
    with caplog.at_level(logging.WARNING):
        sent = beat.run_until(beat.now_ms)
    assert sent == [f"2026-03-10T12:{minute:02}:00" for minute in range(9, 21)]
    assert (beat.entry().runs, beat.entry().missed) == (12, 8)
    assert "8 occurrences were missed" in caplog.text
    assert (beat.ticker.stats.sent, beat.ticker.stats.missed) == (12, 8)


def test_after_a_downtime_one_run_as_in_celery(beat: Any) -> None:
    beat.add("one", "0 * * * *")
    beat.pass_ms(5 * HOUR_MS + MINUTE_MS)
    assert beat.run_until(beat.now_ms) == ["2026-03-10T17:00:00"]
    assert beat.entry().due_ms == beat.ms_of("2026-03-10T18:00:00")


def test_the_policy_of_the_app(make_beat: Callable[..., Any]) -> None:
    beat = make_beat({"beat_catch_up": "skip", "beat_grace": "10m"})
    beat.add("one", "0 * * * *")
    beat.pass_ms(3 * HOUR_MS + 11 * MINUTE_MS)
    assert beat.run_until(beat.now_ms) == []
    assert beat.entry().missed == 3
    beat.pass_ms(58 * MINUTE_MS)
    assert beat.run_until(beat.now_ms) == ["2026-03-10T16:00:00"]


def test_the_starting_deadline_of_celery(make_beat: Callable[..., Any]) -> None:
    beat = make_beat(beat_cron_starting_deadline=60)
    beat.add("one", "0 * * * *")
    beat.add("two", 3600)
    beat.pass_ms(2 * HOUR_MS + 2 * MINUTE_MS)
    assert beat.run_until(beat.now_ms) == ["2026-03-10T14:00:00"]
    assert (beat.entry("one").runs, beat.entry("two").runs) == (0, 1)


def _claimed(beat: Any) -> tuple[Any, Any]:
    (claim,) = [claim for shard in range(beat.store.shards) if (claim := beat.store.claim(shard=shard)).items]
    return claim, beat.ticker.tick(claim.items[0], beat.now_ms)


def test_of_two_processes_with_one_entry_one_sends_it(beat: Any) -> None:
    beat.add("one", 60)
    beat.pass_ms(MINUTE_MS)
    first, late = _claimed(beat)
    beat.pass_ms(31_000)  # its lease is over
    assert beat.tick() == [Outcome.DONE]
    assert beat.recurring.settle(first, [late]).outcomes == [Outcome.STALE]
    beat.tick()
    assert len(beat.sent) == 1


def test_an_entry_that_is_removed_during_a_tick_sends_nothing(beat: Any) -> None:
    beat.add("one", 60)
    beat.pass_ms(MINUTE_MS)
    claim, answer = _claimed(beat)
    assert beat.entries.remove("one")
    assert beat.recurring.settle(claim, [answer]).outcomes == [Outcome.CANCELLED]
    assert beat.run_until(beat.now_ms + HOUR_MS) == []
    assert beat.entries.get("one") is None


@pytest.mark.parametrize("change", ["pause", "replace"])
def test_a_change_during_a_tick_counts_at_once(beat: Any, change: str) -> None:
    beat.add("one", 60)
    beat.pass_ms(MINUTE_MS)
    claim, answer = _claimed(beat)
    if change == "pause":
        beat.entries.pause("one")
    else:
        beat.entries.replace(beat.entries.make("one", "note", "0 * * * *"))
    assert beat.recurring.settle(claim, [answer]).outcomes == [Outcome.OTHER_VERSION]
    assert beat.run_until(beat.now_ms + HOUR_MS) == ([] if change == "pause" else ["2026-03-10T13:00:00"])
    assert beat.entries.get("one").state == ("paused" if change == "pause" else "waiting")


def test_a_run_by_hand_does_not_disturb_the_rhythm(beat: Any) -> None:
    before = beat.add("one", 60, args=(7,))
    task_id = beat.entries.run_now("one")
    beat.tick()
    assert [(task.task_id, task.headers["argsrepr"]) for task in beat.sent] == [(task_id, "[7]")]
    assert beat.entry() == before
    beat.entries.pause("one")
    assert beat.entries.run_now("one") != task_id
    with pytest.raises(NotDone, match="no entry"):
        beat.entries.run_now("two")


def test_a_message_that_cannot_be_made_is_tried_again_then_held(beat: Any, caplog: pytest.LogCaptureFixture) -> None:
    beat.add("one", 60, options={"serializer": "nothing"})
    with caplog.at_level(logging.WARNING):
        assert beat.run_until(beat.now_ms + HOUR_MS) == []
    assert caplog.text.count("celery.beat_failed") == ATTEMPTS - 1
    assert caplog.text.count("celery.beat_held") == 1
    stored = beat.entries.get("one")
    assert (stored.state, stored.entry.failures) == ("failed", ATTEMPTS)
    assert "nothing" in stored.problem
    assert beat.entries.next_runs("one") == []
    beat.entries.replace(beat.entries.make("one", "note", 60))
    assert beat.entries.get("one").problem == ""
    assert len(beat.run_until(beat.now_ms + HOUR_MS)) == 60


def test_a_failure_in_between_loses_nothing(beat: Any) -> None:
    fails = [True, True]

    class Fails(beat.app.Task):  # type: ignore[misc]  # celery has no types
        def apply_async(self, *args: Any, **kwargs: Any) -> Any:
            if fails:
                fails.pop()
                raise OSError("not now")
            return super().apply_async(*args, **kwargs)

    beat.app.task(_nothing, name="fails", base=Fails, shared=False)
    beat.entries.add(beat.entries.make("one", "fails", "0 * * * *"))
    assert beat.run_until(beat.now_ms + HOUR_MS + MINUTE_MS) == ["2026-03-10T13:00:00"]
    assert (beat.entry().failures, beat.ticker.stats.failed) == (0, 2)


def test_a_task_class_may_send_nothing_or_several(beat: Any) -> None:
    class Twice(beat.app.Task):  # type: ignore[misc]  # celery has no types
        def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
            for number in range(self.times):
                super().apply_async((number,), **{**options, "task_id": f"t{number}"})

    for name, times in (("none", 0), ("twice", 2), ("many", 9)):
        beat.app.task(_nothing, name=name, base=Twice, shared=False, times=times)
        beat.entries.add(beat.entries.make(name, name, 3600))
    beat.run_until(beat.now_ms + HOUR_MS)
    assert sorted(task.task_id for task in beat.sent) == ["t0", "t1"]
    assert beat.entry("none").runs == 1
    assert "occurrences" in beat.entry("many").problem


def test_an_entry_of_code_is_left_for_a_process_with_that_code(beat: Any, make_beat: Callable[..., Any]) -> None:
    class Odd(schedule):  # type: ignore[misc]  # celery has no types
        def is_due(self, last_run_at: datetime) -> Any:
            passed_s = (self.now() - last_run_at).total_seconds()
            return (True, 90) if passed_s >= 90 else (False, 90 - passed_s)

    other = make_beat(shards=beat.store.shards)
    other.wheel._store, other.store = beat.store, beat.store
    other.entries._store = beat.store
    other.app.conf.beat_schedule = {"odd": {"task": "note", "schedule": Odd(90), "args": (BeatLazyFunc(len, "abc"),)}}
    assert other.sync().added == ["odd"]
    assert beat.run_until(beat.now_ms + 5_000) == []
    assert beat.entry("odd").failures == 6
    beat.ticker = other.ticker
    beat.run_until(beat.now_ms + 5 * MINUTE_MS)
    assert (beat.entry("odd").runs, beat.entry("odd").failures) == (3, 0)
    assert [task.headers["argsrepr"] for task in beat.sent] == ["[3]"] * 3


def test_an_entry_whose_code_is_nowhere_is_held(beat: Any) -> None:
    made = beat.entries.make("one", "note", 60)
    beat.entries.add(replace(made, in_code=True, schedule={"kind": "code", "shown": "x"}))
    beat.run_until(beat.now_ms + HOUR_MS)
    assert (beat.entry().failures, beat.entries.get("one").state) == (ATTEMPTS_ELSEWHERE, "failed")


def test_an_entry_of_a_later_release_dies_with_a_reason(beat: Any) -> None:
    item = beat.add("one", 60).item()
    beat.store.replace(replace(item, body=b"B1?", due_ms=0))
    (claim,) = [claim for shard in range(beat.store.shards) if (claim := beat.store.claim(shard=shard)).items]
    answer = beat.ticker.tick(claim.items[0], beat.now_ms)
    assert (answer.transient, "no entry of beat" in answer.reason) == (False, True)
    assert claim.items[0].id == item_id_of("one")


def test_with_a_horizon_of_none_entries_still_run(make_beat: Callable[..., Any]) -> None:
    beat = make_beat({"horizon": None, "lead": "0s"})
    beat.add("one", 60)
    assert beat.run_until(beat.now_ms + MINUTE_MS) == ["2026-03-10T12:01:00"]

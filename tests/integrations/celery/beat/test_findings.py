"""What `doctor` and `stats` say about the schedule."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click.testing
from wheel_sched_celery.cli import wheel
from wheel_sched_celery.management import HeldTasks
from wheel_sched_celery.management.beat_findings import beat_findings, beat_state
from wheel_sched_celery.management.doctor import Examined, late
from wheel_sched_celery.management.draining import Drained, drain
from wheel_sched_celery.release.broker_connection import BrokerConnection

from wheel_sched.store import Member, Members

if TYPE_CHECKING:
    import pytest

MINUTE_MS = 60_000


def findings(beat: Any) -> dict[str, tuple[str, str, str]]:
    found = beat_findings(beat_state(beat.entries))
    return {one.check: (one.level, one.evidence, one.fix) for one in found}


def test_a_schedule_that_nobody_runs_says_what_to_start(make_beat: Any) -> None:
    """The finding comes before an entry is late. Only a worker that sends entries counts as running the schedule."""
    beat = make_beat()
    beat.add("one", 60)
    for kind, releases in (("consumer", True), ("celery-worker", False)):
        Members(beat.store).announce(Member(kind, "x", releases=releases), MINUTE_MS)
    level, evidence, fix = findings(beat)["beat"]
    assert (level, evidence.startswith("no worker and no beat process is live, so nobody will send 'one', 2026")) == (
        "problem",
        True,
    )
    assert "celery -A PROJECT beat -S wheel" in fix
    beat.entries.pause("one")
    assert findings(beat)["beat"][0] == "ok"
    silent = make_beat({"announce": 0})  # then it is not known who is live
    silent.add("one", 60)
    assert findings(silent)["beat"][0] == "ok"


def test_a_schedule_that_runs_is_well(beat: Any) -> None:
    """While a worker sends the entries, the finding is ok and names the next entry."""
    assert findings(beat)["beat"][1] == "the schedule has no entries"
    beat.add("one", 60)
    Members(beat.store).announce(Member("celery-beat", "beat@here", releases=True), MINUTE_MS)
    assert beat_state(beat.entries).as_dict()["senders"] == 1
    level, evidence, _ = findings(beat)["beat"]
    assert (level, evidence.startswith("1 entry, next 'one', 2026-03-10T12:01:00.000Z")) == ("ok", True)


def test_overdue_entries_say_which_command_to_start(beat: Any) -> None:
    """The finding names the first overdue entry. The finding about tasks does not count entries."""
    beat.add("one", 60)
    beat.add("two", 120)
    beat.pass_ms(5 * MINUTE_MS)
    level, evidence, fix = findings(beat)["beat"]
    assert level == "problem"
    assert evidence == "2 entries of beat are overdue and nobody sends their tasks; the first, 'one', by 4m"
    assert "celery -A PROJECT beat -S wheel" in fix
    tasks = HeldTasks(beat.wheel, beat.store)
    assert late(Examined(tasks, tasks.counts(), beat.now_ms)).level == "ok"


def test_an_entry_that_failed_says_why_and_how_to_resume(beat: Any) -> None:
    """The finding has the reason and the command that resumes the entry, also for an entry that cannot be read."""
    beat.add("one", 60)
    entry = replace(beat.entry(), due_ms=None, failures=5, problem="no such queue")
    item = entry.item()
    beat.store.cancel([item.id])
    beat.store.schedule([item])
    level, evidence, fix = findings(beat)["beat held"]
    assert (level, "'one': no such queue" in evidence) == ("problem", True)
    assert fix.endswith("celery wheel beat resume 'one'")


def test_an_entry_whose_code_is_gone_is_named(make_beat: Any) -> None:
    """An entry that the code of the app no longer has still runs, so the finding is a warning."""
    beat = make_beat(beat_schedule={"kept": {"task": "note", "schedule": 60}})
    for name in ("kept", "it's gone"):
        beat.entries.add(beat.entries.make(name, "note", 60, source="code"))
    level, evidence, fix = findings(beat)["beat gone"]
    assert (level, "kept" in evidence) == ("warn", False)
    assert "celery wheel beat remove 'it'\\''s gone'" in fix


def test_stats_counts_entries_and_names_the_next(beat: Any) -> None:
    """`stats` counts entries apart from tasks and names the next entry, as text and as JSON."""

    def run(*arguments: str) -> str:
        result = click.testing.CliRunner().invoke(wheel, ["stats", *arguments], obj=SimpleNamespace(app=beat.app))
        assert result.exit_code == 0, result.output
        return result.stdout

    assert "beat" not in run()
    beat.add("one", 60)
    beat.add("two", 120)
    beat.entries.pause("two")
    assert "beat       2 entries, next one, 2026-03-10T12:01:00.000Z (in 1m)" in run()
    found = json.loads(run("--json"))
    assert found["beat"]["states"] == {"waiting": 1, "paused": 1}
    assert (found["beat"]["next"], found["beat"]["next_ms"]) == ("one", beat.now_ms + MINUTE_MS)
    assert found["queues"] == {}
    beat.pass_ms(5 * MINUTE_MS)
    assert "overdue" in run()


def test_purge_and_drain_of_tasks_leave_the_schedule_alone(beat: Any) -> None:
    """`purge --all` and `drain` mean all tasks, and no entries of the schedule."""
    beat.add("one", 60)
    tasks = HeldTasks(beat.wheel, beat.store)
    assert list(tasks.select()) == []
    assert tasks.get(beat.entries.get("one").found.id) == []
    assert tasks.counts().total("due") == 0
    beat.pass_ms(5 * MINUTE_MS)
    assert drain(beat.app) == Drained(0, {}, 0)
    assert beat.entries.get("one").state == "waiting"


def test_a_drain_leaves_an_overdue_entry_to_the_workers_at_once(beat: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """While `drain` publishes tasks, an overdue entry stays due, so that a worker can send it. This holds for tasks
    that are due before the entry, and after it.
    """
    due_ms = beat.add("one", 60).due_ms
    send = beat.app.tasks["note"].apply_async
    for countdown in (30, 90, 3600):
        send(countdown=countdown)
    beat.pass_ms(2 * MINUTE_MS)
    seen: list[tuple[str, int]] = []

    def publish(_broker: Any, tasks: list[Any]) -> list[None]:
        found = beat.entries.get("one").found
        seen.extend((found.state, found.score_ms) for _ in tasks)
        return [None] * len(tasks)

    monkeypatch.setattr(BrokerConnection, "send", publish)
    assert drain(beat.app) == Drained(3, {}, 0)
    assert seen == [("due", due_ms)] * 3
    beat.tick()
    assert beat.entry().runs == 1

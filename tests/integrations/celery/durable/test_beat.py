"""Beat on real workers and beat processes: each occurrence runs once, also when a process that sends it is killed."""

from __future__ import annotations

import json
import signal
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from wheel_sched_celery.beat.entries import BeatEntries

from wheel_sched.store import Members

pytestmark = pytest.mark.real

EVERY_MS = 100
SCHEDULE = {"tick": {"task": "tick", "schedule": EVERY_MS / 1000, "catch_up": "all"}}


def _settings(**more: Any) -> str:
    return json.dumps({"beat_schedule": SCHEDULE, **more})


def _ticks(stage: Any) -> list[int]:
    """The due times of the occurrences that ran, in order, in ms. Fails if one ran twice."""
    rows = [tuple(run.name) for run in stage.runs()]
    assert [row for row, count in Counter(rows).items() if count > 1] == []
    dues = sorted(stage.ms_of(due) for due, _ in rows)
    assert len(set(dues)) == len(dues)
    return dues


def _assert_no_gap(dues: list[int]) -> None:
    assert [later - due for due, later in pairwise(dues) if later - due != EVERY_MS] == []


def test_workers_without_a_beat_process_while_one_is_killed(stage: Any) -> None:
    """Two workers send the occurrences; the server pushes them to their queue. One worker is killed in the middle."""
    other = stage.worker("-Q", "left", SETTINGS=_settings(wheel_beat=True))
    stage.worker(SETTINGS=_settings(wheel_beat=True))
    stage.wait_runs(20)
    other.send_all(signal.SIGKILL)
    stage.wait_runs(stage.client.llen(stage.list) + 20)
    _assert_no_gap(_ticks(stage))
    entries = BeatEntries(stage.app)
    entries.remove("tick")
    sent = entries.store.counts().happened("accepted") - 1
    stage.wait_runs(sent)
    assert len(_ticks(stage)) == sent
    entries.add(entries.make("hourly", "tick", 3600))
    entries.replace(entries.make("hourly", "tick", EVERY_MS / 1000))  # wakes the dispatcher
    stage.wait_runs(sent + 3)


def test_two_beat_processes_while_one_is_killed(stages: Any) -> None:
    """The worker sends nothing; broker and store are two servers. A pause by another process counts at once."""
    stage = stages.stage(store_url=stages.server().tcp_url)
    stage.worker(SETTINGS=_settings(wheel_dispatch=False))
    names = "-S", "wheel_sched_celery.beat.scheduler:BeatScheduler"
    first, second = (stage.beat(*names, SETTINGS=_settings()) for _ in range(2))
    stage.wait_runs(15)
    members = Members(BeatEntries(stage.app).store)
    stage.wait_until(lambda: Counter(one.member.kind for one in members.live())["celery-beat"] == 2, "both are listed")
    first.send_all(signal.SIGKILL)
    stage.wait_runs(stage.client.llen(stage.list) + 15)
    entries = BeatEntries(stage.app)
    entries.pause("tick")
    sent = entries.store.counts().happened("accepted") - 1
    stage.wait_runs(sent)
    _assert_no_gap(_ticks(stage))
    second.send(signal.SIGTERM)
    assert second.wait_ended() == 0, second.log
    # the killed one is listed until its lease ends
    assert [one.member.pid for one in members.live() if one.member.kind == "celery-beat"] == [first.process.pid]
    assert len(_ticks(stage)) == sent

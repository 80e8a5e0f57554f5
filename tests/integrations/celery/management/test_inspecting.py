"""`celery inspect` lists held tasks beside Celery's own entries."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.worker import strategy
from celery.worker.control import Panel
from kombu import Exchange, Queue
from kombu.asynchronous.timer import Timer
from kombu.utils.json import dumps, loads
from wheel_sched_celery.management import HeldTasks, examine
from wheel_sched_celery.remote_control import commands
from wheel_sched_celery.remote_control.workers import reported

from wheel_sched.management.doctor.finding import Finding

pytestmark = pytest.mark.usefixtures("real_server")

OPTIONS: list[dict[str, Any]] = [
    {},
    {"priority": 6, "expires": 86_400, "shadow": "another name", "compression": "zlib"},
    {"exchange": "wide", "routing_key": "a.b", "headers": {"tenant": "t1"}},
]


def worker_of(app: Celery) -> Any:
    """The state of a worker, with the parts of its consumer that Celery's strategy needs."""
    consumer = SimpleNamespace(
        hostname="w@test",
        connection_errors=(),
        event_dispatcher=None,
        timer=Timer(),
        apply_eta_task=lambda request: None,
        disable_rate_limits=True,
        task_buckets={},
        on_task_request=None,
        _limit_task=None,
        _limit_post_eta=None,
        pool=SimpleNamespace(apply_async=None),
        gossip=None,
        qos=SimpleNamespace(increment_eventually=lambda: None),
        controller=SimpleNamespace(state=SimpleNamespace(revoked=set())),
    )
    return SimpleNamespace(app=app, hostname="w@test", consumer=consumer)


@pytest.mark.parametrize("protocol", [2, 1])
@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "options", "exchange"])
def test_a_held_task_looks_like_one_in_a_workers_timer(app: Celery, options: dict[str, Any], protocol: int) -> None:
    """A message in a worker's timer and an equal one in the store have equal entries in `inspect scheduled`."""
    if protocol == 1:
        options = {name: value for name, value in options.items() if name not in ("shadow", "headers")}
    app.conf.task_protocol = protocol
    stock = Celery("stock", broker=app.conf.broker_url, set_as_current=False)
    stock.conf.task_protocol = protocol
    queue = f"q-{app.conf.task_default_queue}"  # pooled connections remember what they declared on an earlier server
    if "exchange" in options:
        options = {**options, "exchange": f"wide-{queue}"}
        wide = Queue(queue, Exchange(options["exchange"], type="topic"), routing_key="a.*")
        app.conf.task_queues = stock.conf.task_queues = [wide]
    eta = datetime.now(UTC) + timedelta(hours=1)
    for each in (stock, app):
        each.send_task("mail.send", ([1, {"é": None}],), {"k": 1.5}, eta=eta, task_id="same", queue=queue, **options)
    state = worker_of(app)
    with stock.connection_for_read() as connection, connection.channel() as channel:
        message = channel.basic_get(queue, no_ack=True)
    receive = strategy.default(app.tasks["mail.send"], app, state.consumer)
    receive(message, None if protocol == 2 else message.payload, None, None, [])
    (theirs,) = commands._stock_scheduled(state)
    state.consumer.timer = Timer()
    (ours,) = Panel.data["scheduled"](state)
    assert loads(dumps(ours)) == loads(dumps(theirs))
    assert ours["request"]["args"] == [[1, {"é": None}]]
    assert Panel.data["query_task"](state, ["same", "unknown"]) == {"same": ("scheduled", ours["request"])}
    stock.close()


def test_what_a_reply_has_no_room_for_is_left_out_and_said(
    app: Celery, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A reply is one message of bounded size. The log says how to list the tasks that do not fit."""
    monkeypatch.setattr(commands, "LIMIT_BYTES", 10_000)
    for hours, size in enumerate((10, 9_000, 10), 1):
        app.send_task("mail.send", ("x" * size,), countdown=3600 * hours)
    app.send_task("pickled", (1,), countdown=60, serializer="pickle")
    assert len(Panel.data["scheduled"](worker_of(app))) == 1
    assert "celery wheel list" in caplog.text
    assert "pickled" not in str(Panel.data["scheduled"](worker_of(app)))


def test_the_celery_program_knows_wheel_stats(tmp_path: Path) -> None:
    """`celery inspect wheel_stats` asks the workers of an app with the integration."""
    (tmp_path / "proj.py").write_text(
        "from celery import Celery\nfrom wheel_sched_celery import install\n"
        "app = Celery('proj', broker='memory://')\ninstall(app, 'redis://nowhere.invalid')\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "proj", "inspect", "wheel_stats", "-t", "0.1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert "No nodes replied" in done.stderr, done.stderr


class Workers:
    """Stands in for `app.control.inspect`, with the answers of workers."""

    def __init__(self, stats: dict[str, Any], scheduled: dict[str, Any]) -> None:
        self._stats = stats
        self._scheduled = scheduled

    def __call__(self, timeout: float) -> Workers:
        return self

    def ping(self) -> dict[str, Any]:
        return {name: {"ok": "pong"} for name in self._stats}

    def scheduled(self) -> dict[str, Any]:
        return self._scheduled

    def stats(self) -> dict[str, Any]:
        return {name: {} for name in self._stats}

    def _request(self, command: str) -> dict[str, Any]:
        assert command == "wheel_stats"
        return {name: reply for name, reply in self._stats.items() if reply is not None}


def findings(app: Celery, monkeypatch: pytest.MonkeyPatch, workers: Workers) -> dict[str, Finding]:
    monkeypatch.setattr(app.control, "inspect", workers)
    return {finding.check: finding for finding in examine(app)}


def answer_of(app: Celery, **more: Any) -> dict[str, Any]:
    """The answer of a worker with a running dispatcher."""
    settings, dispatcher = reported(app.wheel.settings), {"state": "running"}
    return {"installed": True, "settings": settings, "dispatcher": dispatcher, **more}


def test_doctor_counts_as_installed_only_who_says_so(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers with stock Celery answer with an error. These, silent workers and workers without a store do not
    count."""
    stats = {
        "new@a": answer_of(app),
        "stock@b": {"error": "KeyError('wheel_stats')"},
        "bare@c": {"installed": False, "store": None},
        "slow@d": None,
        "timer@e": {"installed": True, "store": None},
    }
    finding = findings(app, monkeypatch, Workers(stats, {"stock@b": {"error": "boom"}}))["workers"]
    assert finding.level == "warn"
    named = "bare@c, slow@d, stock@b, timer@e"
    assert finding.evidence == f"4 of 5 workers without wheel_sched_celery or without a store: {named}"
    quiet = {"new@a": answer_of(app), "quiet@b": answer_of(app, dispatcher=None)}
    finding = findings(app, monkeypatch, Workers(quiet, {}))["workers"]
    assert (finding.level, finding.evidence) == ("ok", "2 workers up, all installed, 1 sending held tasks")


def test_doctor_says_that_nobody_sends_what_is_held(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two workers, one serves a different namespace and one runs no dispatcher.

    `doctor` warns, and reports a problem once a task is held.
    """
    other = {**reported(app.wheel.settings), "namespace": "other"}
    workers = Workers({"a@t": answer_of(app, settings=other), "b@t": answer_of(app, dispatcher=None)}, {})
    assert findings(app, monkeypatch, workers)["workers"].level == "warn"
    app.send_task("held", countdown=3600)
    finding = findings(app, monkeypatch, workers)["workers"]
    assert finding.level == "problem"
    assert finding.evidence.startswith("none of 2 workers sends the held tasks of namespace m")
    assert finding.evidence.endswith(" (a@t: namespace other; b@t: runs no dispatcher)")


def test_doctor_tells_held_tasks_from_those_in_a_workers_memory(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """`inspect scheduled` lists held tasks and tasks in a worker's memory in the same form. `doctor` reports only the
    tasks in memory as a problem."""
    app.send_task("held", countdown=3 * 3600)
    rows = Panel.data["scheduled"](worker_of(app))
    workers = {"w@test": answer_of(app)}
    found = findings(app, monkeypatch, Workers(workers, {"w@test": rows}))
    assert (found["visibility"].level, found["producers"].level) == ("ok", "ok")
    in_memory = {**rows[0], "request": {**rows[0]["request"], "id": "elsewhere", "name": "stock's"}}
    found = findings(app, monkeypatch, Workers(workers, {"w@test": [*rows, in_memory]}))
    assert (found["visibility"].level, found["producers"].level) == ("problem", "warn")
    assert "stock's (1)" in found["producers"].evidence
    assert len(list(HeldTasks(app).select())) == 1

"""Processes that a worker forks (embedded beat and children of the pool) must not copy an import lock that a thread of
the dispatcher holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from celery.utils.imports import symbol_by_name
from celery.worker.components import Beat, Pool
from wheel_sched_celery.announcing import AnnounceStep
from wheel_sched_celery.release.dispatcher_step import DispatcherStep

if TYPE_CHECKING:
    from conftest import Stage, Stages

pytestmark = [pytest.mark.real, pytest.mark.timeout(150)]

PROGRAM = Path(__file__).parent / "processes" / "imports_of_threads.py"


@pytest.mark.parametrize("apart", [True, False], ids=["store apart", "one server"])
def test_a_dispatchers_threads_import_nothing(stages: Stages, apart: bool) -> None:
    """From their start until they have sent a task and a periodic task, the threads import no module.

    So a fork copies no import lock.
    """
    server = stages.server()
    store = stages.server() if apart else server
    done = subprocess.run(
        [sys.executable, PROGRAM],
        env={
            **os.environ,
            "BROKER": server.tcp_url.replace("127.0.0.1", "localhost"),  # a name has to be encoded and looked up
            "STORE": store.tcp_url.replace("127.0.0.1", "localhost"),
        },
        capture_output=True,
        text=True,
        timeout=50,
    )
    report: dict[str, Any] = json.loads(done.stdout)
    assert (report["imported"], report["info"]["members"]) == ([], 1), done.stderr
    assert report["info"]["published"] > 1
    assert report["info"]["beat"]["sent"] > 0


def test_embedded_beat_is_forked_before_the_dispatcher_starts() -> None:
    """The dispatcher's step requires the steps Pool and Beat, so Celery starts it after them."""
    for step in (DispatcherStep, AnnounceStep):
        assert {symbol_by_name(each) for each in step.requires} == {Pool, Beat}


def test_embedded_beat_holds_its_tasks(stage: Stage, tmp_path: Path) -> None:
    """`worker -B` forks beat, which sends ETA tasks. Beat does not wait for ever for an import lock that was copied at
    the fork."""
    entry = {"task": "note", "schedule": 0.5, "args": ["beat"], "options": {"countdown": 600}}
    settings = {"beat_schedule": {"entry": entry}, "beat_max_loop_interval": 0.2}
    worker = stage.worker("-B", "-s", str(tmp_path / "beat"), pool="prefork", SETTINGS=json.dumps(settings))
    worker.wait_ready()
    stage.wait_until(lambda: stage.held() >= 2, "beat's tasks were held", 20)

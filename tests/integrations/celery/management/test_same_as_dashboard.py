"""`celery wheel` and the dashboard change the same tasks and entries, and give the same reasons for the others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click.testing
import pytest
from wheel_sched_celery.beat.entries import BeatEntries
from wheel_sched_celery.cli import wheel
from wheel_sched_celery.dashboard.part import PART

from tests.dashboard.closing import dashboards_end as dashboards_end
from tests.integrations.dashboard_visitor import Visiting
from wheel_sched.config import load_settings
from wheel_sched.dashboard import DashboardApp, DashboardConfig, everyone
from wheel_sched.dashboard.core_part import CORE

if TYPE_CHECKING:
    from celery import Celery
    from wheel_sched_celery.management import HeldTasks

pytestmark = [
    pytest.mark.usefixtures("real_server"),
    pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning"),  # Celery's own, of redis-py 8
]

COMMANDS = {"run-now": "run-task-now", "reschedule": "reschedule-task", "cancel": "revoke-task", "purge": "purge-task"}


@pytest.fixture
def run(app: Celery) -> Callable[..., click.testing.Result]:
    """Runs `celery wheel ...` in this process."""
    return lambda *words: click.testing.CliRunner().invoke(wheel, words, obj=SimpleNamespace(app=app))


@pytest.fixture
def visitor(app: Celery) -> Iterator[Visiting]:
    """A dashboard over the same app."""
    config = DashboardConfig(right="delete", extras={"celery_app": app})
    loaded = load_settings({}, env={})
    opened = DashboardApp(app.wheel.store, loaded, everyone("delete"), config=config, parts=(CORE, PART))
    yield Visiting(opened, PART)
    opened.dashboard.close()


@pytest.mark.parametrize("state", ["due", "leased", "dead", "absent"])
@pytest.mark.parametrize("command", COMMANDS)
def test_the_same_tasks_can_be_changed(
    run: Any, visitor: Visiting, app: Celery, tasks: HeldTasks, command: str, state: str
) -> None:
    """A command changes a task exactly if the preview counts it. Otherwise both say why, and the task stays."""
    app.tasks["mail.send"].apply_async((0,), countdown=3600, task_id="other")
    if state != "absent":
        app.tasks["mail.send"].apply_async((1,), countdown=3600, task_id="a")
        (waiting,) = tasks.get("a")
    if state == "leased":
        tasks.store.reschedule([waiting.found.id], 0, route=waiting.route)
        assert [one.id for one in tasks.store.claim(1, lease_ms=60_000).items] == [waiting.found.id]
    elif state == "dead":
        tasks.store.cancel([waiting.found.id], route=waiting.route)
        tasks.store.bury([(waiting.found.item(), "could not be published")])
    moment = {"in": "2h"} if command == "reschedule" else {}
    options = [word for name, value in moment.items() for word in (f"--{name}", value)]
    counted = visitor.preview(COMMANDS[command], task=["a"], **moment)
    done = run(command, "a", "--state", state if state != "absent" else "due", *options, "--yes")
    assert (done.exit_code == 0) is (counted["count"] == 1), done.output
    if not counted["count"]:
        why = counted["warning"].partition("left: it ")[2].removeprefix("is not here: ")
        assert why
        assert why in done.output
    assert [each.id for each in tasks.get("other")] == ["other"]


@pytest.mark.parametrize("state", ["waiting", "paused", "removed"])
@pytest.mark.parametrize("command", ["pause", "resume", "run-now", "remove"])
def test_the_same_entries_can_be_changed(run: Any, visitor: Visiting, app: Celery, command: str, state: str) -> None:
    """A command changes an entry exactly if the preview counts it. Otherwise both say why, also for an entry that was
    removed.
    """
    app.conf.beat_schedule = {"report": {"task": "mail.send", "schedule": 3600.0, "args": (1,)}}
    entries = BeatEntries(app)
    entries.add(entries.make("report", "mail.send", 3600.0, (1,), source="code"))
    if state == "paused":
        entries.pause("report")
    elif state == "removed":
        entries.remove("report")
    action = "run-beat-entry-now" if command == "run-now" else f"{command}-beat-entry"
    counted = visitor.preview(action, entry=["report"])
    done = run("beat", command, "report")
    assert (done.exit_code == 0) is (counted["count"] == 1), done.output
    if not counted["count"]:
        why = counted["warning"].partition("left: ")[2]
        assert why
        assert why in done.output


@pytest.mark.parametrize(
    ("query", "options"),
    [
        ({}, []),
        ({"name": "mail.*"}, ["--task", "mail.*"]),
        ({"queue": "other"}, ["--queue", "other"]),
        ({"within": "150m"}, ["--until", "+150m"]),
        ({"state": "dead"}, ["--state", "dead"]),
    ],
)
def test_a_search_finds_the_same_tasks(
    run: Any, visitor: Visiting, ids: dict[str, str], query: dict[str, str], options: list[str]
) -> None:
    """The command and the dashboard list the same tasks in the same order."""
    told = [json.loads(line)["id"] for line in run("list", "--json", *options).stdout.splitlines()]
    assert told == [one["id"] for one in visitor.call("/tasks", **query)["tasks"]]
    assert len(told) < len(ids) or not query

"""`celery wheel`: every command on a real store without a worker. Some tests run the real `celery` program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click.testing
import pytest
from wheel_sched_celery.cli import COMMANDS, wheel
from wheel_sched_celery.management import HeldTasks, TaskFilter
from wheel_sched_celery.release.broker_connection import BrokerConnection

from wheel_sched.store.core.items import Item

if TYPE_CHECKING:
    from celery import Celery

pytestmark = [
    pytest.mark.usefixtures("real_server"),
    pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning"),  # Celery's own, of redis-py 8
]

Run = Callable[..., click.testing.Result]


@pytest.fixture
def run(app: Celery) -> Run:
    """Runs `celery wheel ...` in this process, as the celery program calls it."""

    def run(*arguments: str, code: int = 0) -> click.testing.Result:
        result = click.testing.CliRunner().invoke(wheel, arguments, obj=SimpleNamespace(app=app))
        assert result.exit_code == code, result.output
        return result

    return run


def rows(result: click.testing.Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_list_shows_a_table_and_json_a_line_each(run: Run, ids: dict[str, str]) -> None:
    """`list` prints a table or, with --json, one line for each task, in order of ETA."""
    shown = run("list").stdout.splitlines()
    assert shown[0].split() == ["due", "eta", "state", "queue", "task", "id", "args"]
    assert [name for line in shown[1:] for name, each in ids.items() if each in line] == ["one", "two", "three", "bill"]
    assert [row["id"] for row in rows(run("list", "--json"))] == list(ids.values())


def test_list_narrows_by_every_option(run: Run, ids: dict[str, str]) -> None:
    """The options select by ids, names, queues and times."""
    assert [row["id"] for row in rows(run("list", ids["two"], "--json"))] == [ids["two"]]
    assert [row["id"] for row in rows(run("list", "--task", "bill.*", "--json"))] == [ids["bill"]]
    assert [row["id"] for row in rows(run("list", "-Q", "other", "--json"))] == [ids["three"]]
    between = run("list", "--since", "+90m", "--until", "+5h", "--json")
    assert [row["id"] for row in rows(between)] == [ids["two"], ids["three"]]
    assert "the first 2 are shown" not in run("list", "--limit", "2").stderr
    assert "no held task matches" in run("list", "--task", "nothing").stderr


def test_show_tells_all_of_one_task(run: Run, ids: dict[str, str]) -> None:
    """`show` prints the task as text or JSON, or its body alone."""
    text = run("show", ids["three"]).stdout
    for part in (ids["three"], "mail.send", "other", "(3,)", "in 2h59m"):
        assert part in text
    (row,) = rows(run("show", ids["three"], "--json"))
    assert row["headers"]["task"] == "mail.send"
    assert json.loads(run("show", ids["three"], "--body").stdout)[0] == [3]
    assert "see `celery wheel list`" in run("show", "unknown", code=1).stderr


@pytest.mark.parametrize(("module", "error_text"), [("colorsys", ""), ("no_such_module", "'no_such_module'")])
def test_cancel_imports_what_a_worker_imports(
    run: Run, ids: dict[str, str], app: Celery, module: str, error_text: str
) -> None:
    """`cancel` imports the app's modules, as a worker does: they may have handlers of `task_revoked` and errbacks. It
    names a missing module and continues."""
    app.conf.include = [module]
    sys.modules.pop("colorsys", None)
    result = run("cancel", ids["one"])
    assert (result.stdout, error_text in result.stderr) == ("1 task cancelled\n", True)
    assert ("colorsys" in sys.modules, bool(result.stderr)) == (not error_text, bool(error_text))


@pytest.mark.parametrize("command", ["cancel", "purge"])
def test_one_task_named_by_its_id_is_removed_without_a_question(
    run: Run, ids: dict[str, str], tasks: HeldTasks, app: Celery, command: str
) -> None:
    """One task is removed at once if its id is given. For several tasks or a filter the command needs --yes here,
    because nobody can answer its question."""
    run(command, ids["one"])
    assert [each.id for each in tasks.select()] == [ids["two"], ids["three"], ids["bill"]]
    assert "--yes" in run(command, "--task", "bill.*", code=2).stderr
    assert "--yes" in run(command, ids["two"], ids["three"], code=2).stderr
    for number in (1, 2):
        app.tasks["mail.send"].apply_async((number,), eta=datetime(2100, 1, 1, tzinfo=UTC), task_id="shared")
    assert "2 tasks" in run(command, "shared", code=2).stderr
    assert len(list(tasks.select())) == 5


def test_cancel_asks_where_somebody_can_answer(run: Run, ids: dict[str, str], tasks: HeldTasks) -> None:
    """Without a terminal, `cancel` of several tasks needs --yes. A dry run changes nothing."""
    assert "--yes" in run("cancel", ids["one"], ids["two"], code=2).stderr
    assert "would cancel 3 tasks" in run("cancel", "--task", "mail.*", "--dry-run").stdout
    assert len(list(tasks.select())) == 4
    assert run("cancel", "--task", "mail.*", "--yes").stdout == "3 tasks cancelled\n"
    assert [each.id for each in tasks.select()] == [ids["bill"]]


def test_without_a_selection_nothing_is_changed(run: Run, ids: dict[str, str], tasks: HeldTasks) -> None:
    """A command without ids, filter and --all is wrong usage. With an unknown id it changes nothing."""
    for command in ("cancel", "purge", "run-now"):
        assert "Which tasks?" in run(command, "--yes", code=2).stderr
    assert "nothing was changed" in run("purge", ids["one"], "unknown", "--yes", code=1).stderr
    assert "not both" in run("purge", ids["one"], "--all", "--yes", code=2).stderr
    assert len(list(tasks.select())) == 4


def test_reschedule_takes_a_moment_or_a_length_of_time(run: Run, ids: dict[str, str], tasks: HeldTasks) -> None:
    """`reschedule` takes either an ETA or a delay, not both."""
    run("reschedule", ids["one"], "--at", "2033-05-18T03:33:20Z")
    assert tasks.get(ids["one"])[0].eta_ms == 2_000_000_000_000
    before_ms = tasks.now_ms()
    (answer,) = rows(run("reschedule", ids["one"], "--in", "2h30m", "--json"))
    assert answer == {"done": 1, "left": []}
    assert 0 <= (tasks.get(ids["one"])[0].eta_ms or 0) - before_ms - 9_000_000 < 60_000
    assert "expected an instant" in run("reschedule", ids["one"], "--at", "tomorrow", code=2).stderr


def test_run_now_makes_tasks_due(run: Run, ids: dict[str, str], tasks: HeldTasks) -> None:
    """`run-now` makes the selected tasks due, so the next dispatcher sends them."""
    assert run("run-now", "--all", "--yes").stdout == "4 tasks to run now\n"
    assert all((each.eta_ms or 0) <= tasks.now_ms() for each in tasks.select())


def test_purge_removes_the_selected_tasks(run: Run, ids: dict[str, str], tasks: HeldTasks) -> None:
    """`purge` removes the tasks of a queue, or all tasks."""
    run("purge", "--queue", "other", "--yes")
    assert len(list(tasks.select())) == 3
    (answer,) = rows(run("purge", "--all", "--yes", "--json"))
    assert answer["done"] == 3


def test_stats_counts_by_queue(run: Run, ids: dict[str, str], app: Celery) -> None:
    """`stats` counts tasks by queue, and shows which task is due next."""
    text = run("stats").stdout
    assert "other" in text
    assert "4 accepted" in text
    (plain,) = rows(run("stats", "--json"))
    assert plain["queues"]["other"]["due"] == 1
    assert plain["due"] == 4


def test_drain_sends_everything_with_its_eta(run: Run, ids: dict[str, str], tasks: HeldTasks, app: Celery) -> None:
    """`drain` sends the messages that stock Celery would have sent, so workers with stock Celery can run the tasks."""
    assert "would send 4 tasks" in run("drain", "--dry-run").stdout
    result = run("drain", "--yes", "--json")
    assert rows(result) == [{"done": 4, "left": {}, "back": 0}]
    assert "set wheel_horizon = None first" in result.stderr
    assert list(tasks.select()) == []
    with app.connection_for_read() as connection:
        message = connection.SimpleQueue("other").get(timeout=10)
        message.ack()
    assert message.headers["id"] == ids["three"]
    assert message.headers["eta"] is not None


def test_drain_says_what_producers_put_on_hold_meanwhile(
    run: Run, ids: dict[str, str], tasks: HeldTasks, app: Celery, monkeypatch: Any
) -> None:
    """If producers have held tasks during the drain, the store is not empty, and the command fails."""
    send = BrokerConnection.send

    def held_again(connection: BrokerConnection, sent: Any) -> Any:
        answers = send(connection, sent)
        for task in sent:
            item = app.wheel.item_of(task)
            tasks.store.schedule([replace(item, id=f"{item.id}-again", due_ms=task.eta_ms)])
        return answers

    monkeypatch.setattr(BrokerConnection, "send", held_again)
    assert "4 tasks in the store again" in run("drain", "--yes", code=1).stdout


def test_what_is_in_flight_is_named_and_the_exit_code_is_1(run: Run, ids: dict[str, str], tasks: HeldTasks) -> None:
    """`cancel` names the tasks in flight, which it cannot change, and exits with 1. `revoke` can revoke such tasks."""
    tasks.run_now(tasks.get(ids["one"]))
    for shard in range(tasks.store.shards):
        tasks.store.claim(10, shard=shard)
    assert [row["state"] for row in rows(run("list", "--state", "leased", "--json"))] == ["leased"]
    result = run("cancel", "--state", "leased", "--all", "--yes", code=1)
    assert f"not changed: {ids['one']} is on its way" in result.stdout


def test_doctor_names_stock_senders_and_says_that_nobody_is_up(run: Run, ids: dict[str, str], tasks: HeldTasks) -> None:
    """`doctor` reads from the store which producers with stock Celery have sent tasks. It warns of them and of missing
    workers, and exits with 0."""
    (waiting,) = tasks.get(ids["bill"])
    task = waiting.task
    assert task is not None
    item = tasks.wheel.item_of(task)
    assert item is not None
    tasks.store.schedule([Item("bill:0:1", item.due_ms, item.body, item.topic, ("task:bill", "taken-over"), "bill")])
    (report,) = rows(run("doctor", "--json", "--timeout", "0.2"))
    findings = {finding["check"]: finding for finding in report["findings"]}
    assert report["healthy"]
    assert findings["producers"]["level"] == "warn"
    assert str(task.headers["origin"]) in findings["producers"]["evidence"]
    assert findings["workers"]["level"] == "warn"
    assert "exactly once" in findings["horizon"]["evidence"]
    assert "the longest ETA held is 23h" in findings["visibility"]["evidence"]
    assert {"server", "eviction", "backlog"} < set(findings)  # the server's own checks are among them
    assert {"hand-over", "retries"}.isdisjoint(findings)  # but not the checks of topics, because an app has no topics
    assert "0 problems" in run("doctor", "--timeout", "0.2").stdout


def test_doctor_counts_task_ids_that_were_sent_more_than_once(run: Run, app: Celery, tasks: HeldTasks) -> None:
    """Several tasks have one id. `doctor` warns of the id. All these tasks are held, and `get` finds them by the id."""
    eta = datetime.now(UTC) + timedelta(hours=1)
    for number in (1, 2, 2, 3):
        app.tasks["mail.send"].apply_async((number,), eta=eta, task_id="chosen")
    (report,) = rows(run("doctor", "--json", "--timeout", "0.2"))
    (finding,) = [finding for finding in report["findings"] if finding["check"] == "task ids"]
    assert (finding["level"], "1 task id " in finding["evidence"], "chosen" in finding["evidence"]) == (
        "warn",
        True,
        True,
    )
    assert len(tasks.get("chosen")) == 3
    assert len(tasks.cancel(tasks.get("chosen")).done) == 3
    (report,) = rows(run("doctor", "--json", "--timeout", "0.2"))
    assert [each["level"] for each in report["findings"] if each["check"] == "task ids"] == ["ok"]


@pytest.mark.parametrize("options", [{"visibility_timeout": 1}])
def test_doctor_finds_a_visibility_timeout_below_the_horizon(
    run: Run, app: Celery, ids: dict[str, str], options: dict[str, int]
) -> None:
    """`doctor` exits with 1, because tasks beyond the visibility timeout would run more than once."""
    app.conf.broker_transport_options = options
    (report,) = rows(run("doctor", "--json", "--timeout", "0.2", code=1))
    (finding,) = [finding for finding in report["findings"] if finding["level"] == "problem"]
    assert finding["check"] == "visibility"
    assert "shorter than the horizon of 2s" in finding["evidence"]


def test_doctor_finds_due_tasks_that_nobody_sends(run: Run, ids: dict[str, str], tasks: HeldTasks) -> None:
    """A task has been due for a minute, and no worker runs. `doctor` reports a problem and exits with 1."""
    tasks.store.schedule([Item("late", tasks.now_ms() - 60_000, b"-", "queue")])
    (report,) = rows(run("doctor", "--json", "--timeout", "0.2", code=1))
    assert "overdue" in next(each["evidence"] for each in report["findings"] if each["check"] == "dispatch")


def test_the_celery_program_offers_it(app: Celery, ids: dict[str, str], tmp_path: Path, redis_url: str) -> None:
    """`celery -A proj wheel list` works as a process. For an app without the integration, a command says how to install
    it."""
    module = (
        "from celery import Celery\nfrom wheel_sched_celery import install\n"
        f"app = Celery('proj', broker={app.conf.broker_url!r})\n"
        f"install(app, {redis_url!r}, namespace={app.wheel.settings.namespace!r}, shards={app.wheel.settings.shards})\n"
    )
    (tmp_path / "proj.py").write_text(module)
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "proj", "wheel", "list", "--json"],
        cwd=tmp_path,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, f"{done.stderr} after {time.monotonic() - started} s"
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == list(ids.values())
    module = "from celery import Celery\napp = Celery('plain', broker='memory://')\n"
    (tmp_path / "plain.py").write_text(module)
    done = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "plain", "wheel", "stats"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 2
    assert "install(app)" in done.stderr


def test_a_reader_that_is_gone_is_no_failure(app: Celery, ids: dict[str, str], tmp_path: Path, redis_url: str) -> None:
    """If the program that reads a command's output has ended, as with `| true`, the command exits with 0. Celery itself
    would fail."""
    module = (
        "from celery import Celery\nfrom wheel_sched_celery import install\n"
        f"app = Celery('proj', broker={app.conf.broker_url!r})\n"
        f"install(app, {redis_url!r}, namespace={app.wheel.settings.namespace!r}, shards={app.wheel.settings.shards})\n"
    )
    (tmp_path / "proj.py").write_text(module)
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "celery", "-A", "proj", "wheel"]
    running = [
        subprocess.Popen([*command, *args], cwd=tmp_path, stdout=writing, stderr=subprocess.PIPE)
        for args in (("list", "--json"), ("--help",))
    ]
    os.close(writing)
    ended = [(process.communicate(timeout=50)[1], process.returncode) for process in running]
    assert ended == [(b"", 0)] * 2


@pytest.mark.parametrize("times", [(), ("--in", "1h", "--at", "now")], ids=["none", "two"])
def test_reschedule_needs_exactly_one_new_eta(run: Run, ids: dict[str, str], times: tuple[str, ...]) -> None:
    """With no ETA or with two, the error says what is wrong."""
    error_text = run("reschedule", ids["one"], *times, code=2).stderr
    assert ("Give --in or --at, not both;" if times else "When? Give --in or --at;") in error_text


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_examples(run: Run, command: str) -> None:
    """`--help` of every command has examples, and needs no store."""
    assert "Examples:" in run(command, "--help").stdout


def test_selection_is_the_same_from_python(tasks: HeldTasks, ids: dict[str, str]) -> None:
    """Python code can select tasks by their ids with a `TaskFilter`. The tasks have the order of these ids."""
    assert [each.id for each in tasks.select(TaskFilter(ids=(ids["bill"], ids["one"])))] == [ids["bill"], ids["one"]]


def test_the_plugin_costs_other_commands_no_client() -> None:
    """Every `celery` command loads the plugin. So the plugin imports only click and the table of commands."""
    program = (
        "import sys, wheel_sched_celery.cli\n"
        "assert not {'redis', 'celery', 'kombu', 'wheel_sched.store'} & set(sys.modules), sorted(sys.modules)\n"
        "import wheel_sched_celery\n"
        "for name in wheel_sched_celery.__all__: getattr(wheel_sched_celery, name)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr

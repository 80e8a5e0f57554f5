"""The broker is away, and the store answers. Work that needs only the store succeeds. Other work fails with a short
error."""

from __future__ import annotations

import itertools
import json
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import click.testing
import pytest
from celery import Celery
from wheel_sched_celery import install
from wheel_sched_celery.cli import wheel
from wheel_sched_celery.management import HeldTasks
from wheel_sched_celery.release.dispatcher_step import EmbeddedDispatcher

pytestmark = [pytest.mark.usefixtures("real_server")]

_numbers = itertools.count()
NOWHERE = "redis://127.0.0.1:1/0"


@pytest.fixture
def app(redis_url: str) -> Iterator[Celery]:
    """An app that has not sent a task yet."""
    app = Celery("away", broker=NOWHERE, backend="cache+memory://", set_as_current=False)
    app.conf.broker_transport_options = {"max_retries": 0}  # otherwise Celery itself tries again for seconds
    install(app, redis_url, namespace=f"away{next(_numbers)}")
    yield app
    app.wheel.close()
    app.close()


def run(app: Celery, *arguments: str, code: int = 0) -> click.testing.Result:
    result = click.testing.CliRunner().invoke(wheel, arguments, obj=SimpleNamespace(app=app))
    assert result.exit_code == code, (result.output, result.exception)
    return result


def test_a_process_first_task_is_held(app: Celery) -> None:
    """The first task of a process is held. If this failed for a retry, the retry would be lost, because Celery gives it
    up."""
    app.send_task("note", countdown=60)
    assert len(list(HeldTasks(app).select())) == 1


@pytest.mark.parametrize("command", [("reschedule", "--in", "2h"), ("run-now",)], ids=lambda command: command[0])
def test_a_task_can_be_moved(app: Celery, command: tuple[str, ...]) -> None:
    """A process that has never asked the broker can reschedule a held task, or make it due now."""
    app.send_task("note", countdown=60)
    app.wheel.close()
    app.wheel._forget()  # as in another process
    (row,) = run(app, *command, "--all", "--yes", "--json").stdout.splitlines()
    assert json.loads(row) == {"done": 1, "left": []}


def test_doctor_says_that_the_broker_is_away(app: Celery) -> None:
    """`doctor` says that the broker is away. Its other checks still read the store."""
    app.send_task("note", countdown=60)
    (row,) = run(app, "doctor", "--json", "--timeout", "0.2", code=1).stdout.splitlines()
    findings = {finding["check"]: finding for finding in json.loads(row)["findings"]}
    assert findings["broker"]["level"] == "problem"
    assert findings["dispatch"]["level"] == "ok"


@pytest.mark.timeout(60)
def test_doctor_waits_for_a_broker_that_hangs_no_longer_than_it_has_to(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker accepts connections and never answers. `doctor` ends all the same; Celery's own connection would wait
    without limit."""
    monkeypatch.setattr("wheel_sched_celery.release.broker_connection.CONNECT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        app = Celery("mute", broker=f"redis://127.0.0.1:{mute.getsockname()[1]}/0", set_as_current=False)
        install(app, redis_url, namespace=f"away{next(_numbers)}", timeout=0.5)
        (row,) = run(app, "doctor", "--json", "--timeout", "0.2", code=1).stdout.splitlines()
        app.wheel.close()
        app.close()
    findings = {finding["check"]: finding for finding in json.loads(row)["findings"]}
    assert (findings["broker"]["level"], findings["dispatch"]["level"]) == ("problem", "ok")


def test_a_drain_ends_with_one_line_and_leaves_everything(app: Celery) -> None:
    """`drain` exits with 69, the same code as for a store that is away. The tasks are still held."""
    app.send_task("note", countdown=60)
    (line,) = run(app, "drain", "--yes", code=69).stderr.splitlines()[-1:]
    assert line.startswith("celery wheel: the broker is away: ")
    assert len(list(HeldTasks(app).select())) == 1


class ThirdTime(threading.Event):
    """An event that becomes set at the third wait. It records the dispatcher's state."""

    def __init__(self, embedded: EmbeddedDispatcher) -> None:
        super().__init__()
        self.seen: list[str] = []
        self._embedded = embedded

    def wait(self, timeout: float | None = None) -> bool:
        self.seen.append(self._embedded.info["state"])
        if len(self.seen) == 3:
            self.set()
        return self.is_set()


def test_a_dispatcher_waits_for_the_broker(app: Celery, caplog: pytest.LogCaptureFixture) -> None:
    """While the broker is away, the dispatcher logs the reason once, and tries again and again."""
    embedded = EmbeddedDispatcher(app.wheel)
    embedded._stopping = turns = ThirdTime(embedded)
    embedded._run()
    assert turns.seen == ["waiting: the broker is away"] * 3
    assert caplog.text.count("celery.dispatcher_waits: the broker is away") == 1


def test_a_dispatcher_survives_whatever_a_client_raises(
    app: Celery, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unexpected error does not end the dispatcher's thread. Without the thread no task would be released, and
    nobody would notice."""

    def odd() -> bool:
        raise KeyError("odd")

    monkeypatch.setattr(app.wheel.shared_server, "ask", odd)
    embedded = EmbeddedDispatcher(app.wheel)
    embedded._stopping = turns = ThirdTime(embedded)
    embedded._run()
    assert turns.seen == ["waiting: KeyError('odd')"] * 3
    assert caplog.text.count("celery.dispatcher_failed") == 1

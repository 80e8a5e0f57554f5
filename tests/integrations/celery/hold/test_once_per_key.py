"""`wheel_collapse` and `wheel_debounce`: of several tasks that wait under one key, only one is run."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from wheel_sched.errors import Rejected

if TYPE_CHECKING:
    from conftest import InstalledApp


def dues(installed: InstalledApp) -> dict[str, float]:
    """In how many seconds each waiting task leaves the store, by its argument."""
    found = installed.store.list_items("due").found
    now_ms = time.time_ns() // 1_000_000
    return {one.id.split(":")[0]: (one.score_ms - now_ms) / 1000 for one in found}


def test_collapse_runs_the_first_task_of_a_key(installed: InstalledApp, caplog: pytest.LogCaptureFixture) -> None:
    """While a task waits under a key, later tasks of the key are not run, and the log names them.

    Each queue has its own keys.
    """
    caplog.set_level(logging.INFO, "wheel_sched.celery")
    for task_id in ("a", "b", "c"):
        installed.send("note", 1, task_id=task_id, countdown=1, wheel_collapse="key")  # within the horizon, too
    installed.send("note", 1, task_id="d", countdown=60, wheel_collapse="key", queue="other")
    assert set(dues(installed)) == {"a", "d"}
    assert installed.published() == []
    lines = [line for line in caplog.messages if line.startswith("celery.superseded")]
    assert lines[0] == "celery.superseded: task b is not run: task a of the same key runs in its place; queue celery"
    assert len(lines) == 2


def test_debounce_runs_the_last_task_of_a_key(installed: InstalledApp, caplog: pytest.LogCaptureFixture) -> None:
    """Each task takes the place of the waiting one, and is due at most `wheel_max_wait` after the first."""
    caplog.set_level(logging.INFO, "wheel_sched.celery")
    installed.send("note", 1, task_id="a", countdown=30, wheel_debounce="key")
    installed.send("note", 2, task_id="b", countdown=600, wheel_debounce="key", wheel_max_wait=45.5)
    waiting = dues(installed)
    assert set(waiting) == {"b"}
    assert 40 < waiting["b"] <= 45.5
    assert (
        "celery.superseded: task a is not run: task b of the same key runs in its place; queue celery"
        in caplog.messages
    )
    (message,) = installed.dispatch(installed.claim())
    assert message.headers["eta"] < time.strftime(
        "%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() + 5)
    )  # the worker runs it
    assert not [name for name in (*message.headers, *message.properties) if name.startswith("wheel_")]


def test_the_result_of_a_superseded_task_is_revoked(
    installed: InstalledApp, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that takes its own place is not revoked. Without the result backend, tasks are held as always."""
    states = installed.app.backend.get_state
    for task_id, countdown in (("ra", 30), ("rb", 30), ("rb", 40)):
        installed.send("note", task_id=task_id, countdown=countdown, wheel_debounce="one")
    for task_id in ("rc", "rd"):
        installed.send("note", task_id=task_id, countdown=30, wheel_collapse="two")
    assert [states(task_id) for task_id in ("ra", "rb", "rc", "rd")] == ["REVOKED", "PENDING", "PENDING", "REVOKED"]
    calls = []

    def fail(task_id: str, *_: object, **__: object) -> None:
        calls.append(task_id)
        raise OSError("away")

    monkeypatch.setattr(installed.app.backend, "mark_as_revoked", fail)
    for task_id in ("re", "rf"):
        installed.send("note", task_id=task_id, countdown=30, wheel_debounce="one")
    assert calls == ["rb"]  # the second call does not wait for a backend that is away
    assert set(dues(installed)) == {"rc", "rf"}
    assert "celery.not_marked: task rb is not run, but its result stays PENDING" in caplog.text


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            {"countdown": 9, "wheel_collapse": "a", "wheel_debounce": "b"},
            "wheel_collapse or wheel_debounce, got both",
        ),
        ({"wheel_collapse": "a"}, "expected a countdown or an ETA"),
        ({"countdown": 9, "wheel_debounce": 7}, "expected the key of wheel_collapse or wheel_debounce to be text"),
        ({"countdown": 9, "wheel_debounce": "a", "wheel_max_wait": 0}, "expected wheel_max_wait to be seconds above 0"),
        ({"countdown": 9, "wheel_max_wait": 9}, "expected wheel_debounce with wheel_max_wait"),
    ],
)
def test_wrong_options_are_refused(installed: InstalledApp, options: dict[str, Any], problem: str) -> None:
    """The task is neither held nor sent."""
    with pytest.raises(Rejected, match=problem):
        installed.send(**options)
    assert (installed.held(), installed.published()) == ([], [])


def test_several_shards_are_refused(make_installed: Callable[..., InstalledApp]) -> None:
    """A task lies in the shard of its id, so the tasks of a key would lie in several shards."""
    installed = make_installed(shards=2)
    with pytest.raises(Rejected, match="expected a store with one shard"):
        installed.send(countdown=60, wheel_collapse="key")
    assert installed.held() == []

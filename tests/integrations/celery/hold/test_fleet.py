"""How `doctor` reads the answers of workers to `wheel_stats`."""

from __future__ import annotations

from typing import Any

import pytest
from wheel_sched_celery.remote_control.workers import differing, reported, why_idle
from wheel_sched_celery.settings import WheelSettings


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"settings": {"namespace": "ours"}, "dispatcher": {"state": "running"}}, ""),
        ({"settings": {"namespace": "other"}, "dispatcher": {"state": "running"}}, "namespace other"),
        ({"settings": {"namespace": "ours"}, "dispatcher": None}, "runs no dispatcher"),
        ({"settings": {"namespace": "ours"}, "dispatcher": {"state": "waiting: broker"}}, "waiting: broker"),
        ({"store": None}, "without a store"),
        ({"installed": False, "store": None}, "did not report that it has wheel_sched_celery"),
        (None, "did not report that it has wheel_sched_celery"),
    ],
    ids=["ours", "another namespace", "dispatch=False", "waiting", "url=None", "not installed", "silent"],
)
def test_a_worker_sends_what_its_namespace_holds_while_its_dispatcher_runs(answer: Any, why: str) -> None:
    """`why_idle` returns "" if the worker's dispatcher releases tasks of this namespace, and otherwise the reason."""
    assert why_idle("ours", answer and {"installed": True, **answer}) == why


def test_settings_that_differ_on_one_namespace_are_named() -> None:
    """`differing` compares this app's settings with those of the workers of its namespace. It ignores all other
    workers."""
    mine = WheelSettings()
    same, short = {"settings": reported(mine)}, {"settings": reported(WheelSettings(horizon=500, lead=1000))}
    other = {"settings": reported(WheelSettings(namespace="other", horizon=1, lead=0))}
    quiet: dict[str, Any] = {"b": same, "c": other, "d": {"error": "no"}, "e": "odd", "f": {"settings": None}}
    assert differing(mine, quiet) == []
    assert differing(mine, {"a": short, **quiet}) == ["horizon: 2s in this app, b; 500ms in a"]

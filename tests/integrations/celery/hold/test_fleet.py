"""What workers say of themselves, read by `drain` and `doctor`."""

from __future__ import annotations

from typing import Any

import pytest
from wheel_sched_celery.remote_control.workers import (
    RELEASE,
    differing,
    is_older,
    takers_back,
    told,
    wheel_stats,
    why_idle,
)
from wheel_sched_celery.settings import WheelSettings


@pytest.mark.parametrize(
    ("answer", "safe"),
    [
        ({"installed": True, "release": RELEASE}, True),
        ({"installed": True, "release": RELEASE + 1, "error": "the store is away"}, True),
        ({"installed": True, "release": RELEASE - 1}, False),
        ({"installed": True}, False),
        ({"installed": False, "store": None}, True),
        ({"installed": True, "store": None}, True),
        ({"error": "KeyError('wheel_stats')"}, True),
        (None, False),
        ("busy", False),
    ],
    ids=[
        "this release",
        "a later one",
        "an older one",
        "before releases",
        "not installed",
        "no store",
        "stock",
        "silent",
        "odd",
    ],
)
def test_a_drain_goes_on_only_beside_workers_that_leave_its_tasks_alone(answer: Any, safe: bool) -> None:
    """Stock workers take nothing over; who is silent, or older, might."""
    answers = {} if answer is None else {"w1": answer}
    assert takers_back(["w1"], answers) == ([] if safe else ["w1"])


class Inspect:
    """Stands in for Celery's: three workers, of which none knows `wheel_stats`."""

    def _request(self, command: str) -> dict[str, Any]:
        assert command == "wheel_stats"
        return {name: {"error": "KeyError('wheel_stats')"} for name in ("stock", "old", "slow")}

    def stats(self) -> dict[str, Any]:
        return {"stock": {"pool": {}}, "old": {"pool": {}, "wheel_collector": {"put_aside": 1}}}


def test_a_worker_of_an_older_release_that_does_not_dispatch_is_told_from_a_stock_one() -> None:
    """It never registered `wheel_stats`, and takes tasks back all the same."""
    answers = wheel_stats(Inspect())
    assert [name for name, answer in answers.items() if is_older(answer)] == ["old"]
    assert takers_back(answers, answers) == ["old"]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"settings": {"namespace": "ours"}, "dispatcher": {"state": "running"}}, ""),
        ({"settings": {"namespace": "other"}, "dispatcher": {"state": "running"}}, "namespace other"),
        ({"settings": {"namespace": "ours"}, "dispatcher": None}, "dispatches nothing"),
        ({"settings": {"namespace": "ours"}, "dispatcher": {"state": "waiting: broker"}}, "waiting: broker"),
        ({"store": None}, "without a store"),
        ({"installed": False, "store": None}, "does not say that it has wheel_sched_celery"),
        (None, "does not say that it has wheel_sched_celery"),
    ],
    ids=["ours", "another namespace", "dispatch=False", "waiting", "url=None", "not installed", "silent"],
)
def test_a_worker_sends_what_its_namespace_holds_while_its_dispatcher_runs(answer: Any, why: str) -> None:
    """Else it is said why not."""
    assert why_idle("ours", answer and {"installed": True, **answer}) == why


def test_settings_that_differ_on_one_namespace_are_named() -> None:
    """Other namespaces, stock workers and older ones have no say."""
    mine = WheelSettings()
    same, short = {"settings": told(mine)}, {"settings": told(WheelSettings(horizon=500, lead=1000))}
    other = {"settings": told(WheelSettings(namespace="other", horizon=1, lead=0))}
    quiet: dict[str, Any] = {"b": same, "c": other, "d": {"error": "no"}, "e": "odd", "f": {"settings": None}}
    assert differing(mine, quiet) == []
    assert differing(mine, {"a": short, **quiet}) == ["horizon: 2s in this app, b; 500ms in a"]

"""What workers say of themselves, read by `drain` and `doctor`."""

from __future__ import annotations

from typing import Any

import pytest
from wheel_sched_celery.fleet import RELEASE, differing, takers_back, told
from wheel_sched_celery.settings import WheelSettings


@pytest.mark.parametrize(
    ("answer", "safe"),
    [
        ({"installed": True, "release": RELEASE}, True),
        ({"installed": True, "release": RELEASE + 1, "error": "the store is away"}, True),
        ({"installed": True, "release": RELEASE - 1}, False),
        ({"installed": True}, False),
        ({"installed": False, "store": None}, True),
        ({"error": "KeyError('wheel_stats')"}, True),
        (None, False),
        ("busy", False),
    ],
    ids=["this release", "a later one", "an older one", "before releases", "no store", "stock", "silent", "odd"],
)
def test_a_drain_goes_on_only_beside_workers_that_leave_its_tasks_alone(answer: Any, safe: bool) -> None:
    """Stock workers take nothing over; who is silent, or older, might."""
    answers = {} if answer is None else {"w1": answer}
    assert takers_back(["w1"], answers) == ([] if safe else ["w1"])


def test_settings_that_differ_on_one_namespace_are_named() -> None:
    """Other namespaces, stock workers and older ones have no say."""
    mine = WheelSettings()
    same, short = {"settings": told(mine)}, {"settings": told(WheelSettings(horizon=500, lead=1000))}
    other = {"settings": told(WheelSettings(namespace="other", horizon=1, lead=0))}
    quiet: dict[str, Any] = {"b": same, "c": other, "d": {"error": "no"}, "e": "odd", "f": {"settings": None}}
    assert differing(mine, quiet) == []
    assert differing(mine, {"a": short, **quiet}) == ["horizon: 2s in this app, b; 500ms in a"]

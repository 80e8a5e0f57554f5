"""The benchmarks run, small, the first two against a real server; their results have what they promise."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks import dispatch, store, wheel
from benchmarks.wheel.tables import full_table
from wheel_sched.wheel import CORES

pytestmark = pytest.mark.real


def absent(figures: Any, result: dict[str, Any]) -> list[str]:
    return [figure.key for figure in figures if figure.value(result) is None]


def test_the_store_benchmark_measures_every_figure() -> None:
    """Two rounds of 2,000 messages give a number for each figure and JSON that can be written."""
    result = store.run(store.Sizes(2, 2_000, messages=5_000, stall_rounds=1, stall_messages=3_000))
    assert absent(store.FIGURES, result) == []
    assert result["messages"] == 5_000
    assert 0 < result["max_script_ms"] <= result["max_stall_ms"]
    assert {"python", "server", "cpus", "rounds", "baseline"} <= set(json.loads(json.dumps(result)))


def test_the_dispatch_benchmark_measures_every_figure() -> None:
    """Two small rounds give a number for each figure; nothing is early, nothing lost, and idle is idle."""
    sizes = dispatch.Sizes(
        rounds=2,
        burst_messages=1_000,
        lateness_rounds=1,
        lateness_messages=100,
        lateness_s=0.3,
        wakeups=5,
        sleeps=10,
        idle_s=0.5,
    )
    result = dispatch.run(sizes)
    assert absent(dispatch.FIGURES, result) == []
    assert (result["early"], result["lost"], result["idle_commands"]) == (0, 0, 0)
    assert {"python", "server", "cpus", "rounds", "baseline"} <= set(json.loads(json.dumps(result)))


@pytest.mark.timeout(300)
def test_the_wheel_benchmark_measures_every_figure() -> None:
    """One small round: a number for each figure; nothing early."""
    pytest.importorskip("kombu", reason="the bench group is not installed")
    sizes = wheel.Sizes(
        rounds=1,
        counts=(10_000, 100_000),
        large=100_000,
        large_rounds=1,
        mixes=("uniform",),
        live=(10_000, 100_000),
        memory=20_000,
        lateness_rounds=1,
        timers=50,
        over_s=0.2,
    )
    result = wheel.run(sizes)
    missing = absent(wheel.FIGURES, result)
    if "compiled" in CORES:
        assert missing == []
    assert (result["early"], result["wakeups_after_cancel"]) == (0, 0)
    assert {"core", "table", "python", "cpus", "rounds"} <= set(json.loads(json.dumps(result)))
    assert full_table(result).count("wheel, pure") == 3

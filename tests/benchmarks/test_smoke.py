"""Both benchmarks run, small, against a real server; their results have what they promise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import dispatch, purgatory, store
from benchmarks.purgatory.plots import write

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


@pytest.mark.slow
def test_the_purgatory_benchmark_measures_every_figure(tmp_path: Path) -> None:
    """A few small points give a number for each figure; every point of new and old is there, and both plots."""
    sizes = purgatory.Sizes(
        rates=(500, 1_000),
        new_from=500,
        seconds=0.2,
        rounds=1,
        bare_rate=1_000,
        members=2_000,
        beats=5_000,
        sizes=(32,),
    )
    result = purgatory.run(sizes)
    assert absent(purgatory.FIGURES, result) == []
    assert {point["design"] for point in result["points"]} == {"old", "new", "bare"}
    assert {point["wheel_size"] for point in result["points"]} == {32, 4096}
    assert all(point["achieved"] > 0 and point["cpu_us"] > 0 for point in result["points"])
    assert {"core", "python", "cpus", "rounds", "members"} <= set(json.loads(json.dumps(result)))
    for path in write(result["points"], tmp_path):
        assert ElementTree.parse(path).getroot().tag.endswith("svg")  # noqa: S314  # written a moment ago, by us

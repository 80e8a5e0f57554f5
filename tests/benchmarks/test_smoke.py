"""Small runs of the benchmarks give a number for each figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import apscheduler, celery, dashboard, dispatch, event_loop, fairness, simulator, store, wheel
from benchmarks.wheel.tables import full_table
from wheel_sched.wheel import CORES

pytestmark = [pytest.mark.proof, pytest.mark.real, pytest.mark.timeout(180)]  # as much as a busy machine may need


def absent(figures: Any, result: dict[str, Any]) -> list[str]:
    return [figure.key for figure in figures if figure.value(result) is None]


def without_spread(figures: Any, result: dict[str, Any]) -> list[str]:
    return [figure.key for figure in figures if figure.bound and figure.spread(result) is None]


def test_the_store_benchmark_measures_every_figure() -> None:
    """Two rounds of 2,000 messages give a number for each figure and JSON that can be written."""
    result = store.run(store.Sizes(2, 2_000, messages=5_000, stall_rounds=1, stall_messages=3_000))
    assert absent(store.FIGURES, result) == []
    assert result["messages"] == 5_000
    assert 0 < result["max_script_ms"] <= result["max_turn_ms"]
    assert 0 < result["max_stall_ms"] <= result["max_wait_ms"]
    assert {"python", "server", "cpus", "rounds", "baseline"} <= set(json.loads(json.dumps(result)))


def test_the_dispatch_benchmark_measures_every_figure() -> None:
    """Two small rounds give a number for each figure. No message is early or lost; an idle dispatcher sends nothing."""
    sizes = dispatch.Sizes(
        rounds=2,
        burst_messages=1_000,
        lateness_rounds=1,
        lateness_messages=100,
        lateness_s=0.3,
        wakeups=5,
        idle_s=0.5,
    )
    result = dispatch.run(sizes)
    assert absent(dispatch.FIGURES, result) == []
    assert (result["early"], result["lost"], result["idle_commands"]) == (0, 0, 0)
    assert {"python", "server", "cpus", "rounds", "baseline"} <= set(json.loads(json.dumps(result)))


def test_the_dashboard_benchmark_measures_every_figure() -> None:
    """A small run gives a number for each figure, asks for each page of the navigation, and keeps the count gates."""
    result = dashboard.run(dashboard.Sizes(waiting=2_000, dead=1_000, visits=2, rounds=1, burst=1_000, viewers=3))
    assert absent(dashboard.FIGURES, result) == []
    assert {"/", "/members", "/audit", "/items", "/dead-letters"} <= set(result["first_byte_by_page_ms"])
    assert 0 < result["assets_gzip_kb"] <= 60
    assert {"python", "server", "cpus", "rounds", "baseline"} <= set(json.loads(json.dumps(result)))


def test_the_fairness_benchmark_measures_every_figure() -> None:
    """A small run gives a number for each figure, and keeps the gates that no busy machine can break."""
    sizes = fairness.Sizes(behind=5_000, seconds=1, unfair_seconds=0.5, served=2_000, rounds=1, burst=1_000, keys=2_000)
    result = fairness.run(sizes)
    assert absent(fairness.FIGURES, result) == []
    assert result["early"] == 0
    assert result["share_error"] <= 0.05
    assert result["others_arrived_unfair"] < result["others_arrived"]
    assert {"python", "server", "cpus", "rounds", "baseline"} <= set(json.loads(json.dumps(result)))


@pytest.mark.timeout(300)
def test_the_wheel_benchmark_measures_every_figure() -> None:
    """One small round gives a number for each figure. No timer is early."""
    pytest.importorskip("kombu", reason="the bench group is not installed")
    sizes = wheel.Sizes(
        rounds=1,
        counts=(10_000, 100_000),
        large=100_000,
        large_rounds=1,
        mixes=("uniform",),
        live=(10_000, 100_000),
        all=False,
        memory=20_000,
        memory_rounds=2,
        lateness_rounds=2,
        timers=50,
        over_s=0.2,
    )
    result = wheel.run(sizes)
    missing = absent(wheel.FIGURES, result)
    if "compiled" in CORES:
        assert missing == []
        assert without_spread(wheel.FIGURES, result) == ["wakeups_after_cancel", "early"]  # counts of the whole run
    assert (result["early"], result["wakeups_after_cancel"]) == (0, 0)
    assert {"core", "table", "python", "cpus", "rounds"} <= set(json.loads(json.dumps(result)))
    assert full_table(result).count("wheel, pure") == 3


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_apscheduler_benchmark_measures_every_figure(tmp_path: Path) -> None:
    """One small round gives a number for each figure, JSON that can be written and a plot that can be read."""
    result = apscheduler.run(
        apscheduler.Sizes(
            rounds=1, drain=500, redis=200, waiting_rounds=1, stall_rounds=1, lateness_s=0.1, million=5_000
        )
    )
    assert absent(apscheduler.FIGURES, result) == []
    assert {"python", "server", "cpus", "rounds"} <= set(json.loads(json.dumps(result)))
    (plot,) = apscheduler.write_plots(result, tmp_path / "plots")
    assert ElementTree.parse(plot).getroot().tag.endswith("svg")  # noqa: S314 - written a line above


@pytest.mark.timeout(300)
def test_the_celery_benchmark_measures_every_figure() -> None:
    """A small run with workers of stock Celery and of this package gives a number for each figure.

    No task is early, and this package loses none. The test does not judge doubled tasks, because with a visibility
    timeout of a few seconds they depend on how busy the machine is.
    """
    sizes = celery.Sizes(
        rounds=1,
        enqueued=50,
        held=200,
        late_rounds=1,
        late_tasks=50,
        late_s=0.5,
        lead_s=2.0,
        give_up_s=30.0,
        killed=50,
        killed_s=6.0,
        visibility_s=8,
        doubled_s=6.0,
        limit_s=30.0,
        memory_first=False,
        pools=("threads",),
    )
    result = celery.run(sizes)
    assert [key for key in absent(celery.FIGURES, result) if ".solo." not in key and ".prefork." not in key] == []
    assert (result["early"], result["lost"]) == (0, 0)
    assert {"python", "server", "cpus", "rounds"} <= set(json.loads(json.dumps(result)))


def test_the_simulator_benchmark_measures_every_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rounds of two histories in each world give a number for each figure. The rounds run different histories.

    `tests/simulation` switches the safeguards off, so this test does not.
    """
    monkeypatch.setattr(simulator, "_safeguards", lambda _: (83, []))
    result = simulator.run(simulator.Sizes(rounds=2, histories=2, seeds=0))
    assert absent(simulator.FIGURES, result) == []
    assert (result["violations"], result["histories"]) == (0, 4 * len(result["worlds"]))
    spread = result["spread"]["history_vs_bare"]
    assert 0 < spread["min"] <= result["history_vs_bare"] <= spread["max"]


def test_a_bare_event_loop_has_a_rate() -> None:
    """The baseline of the simulator gives events per second, on one processor and on two at once."""
    assert event_loop.run(1_000) > 0
    assert event_loop.per_second(1_000, 2) > 0

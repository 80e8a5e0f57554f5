"""The gates of the benchmarks, which are limits for figures, and how the command line reports them.

A machine is unfit to measure if its sleeping threads wake too late, or if equal loops take too unequal times.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest

from benchmarks import __main__ as command
from benchmarks import dashboard, dispatch, fairness, fitness, purgatory, simulator, spark, store, wheel
from benchmarks.__main__ import BENCHMARKS
from benchmarks.figures import Figure, missed
from benchmarks.fitness import Fitness

FAST = Figure("rate.median", "msg/s", "how fast", at_least=100)
QUIET = Figure("idle", "commands", "how quiet", at_most=0)
CONTEXT = Figure("cpus", "", "context")
FIT = Fitness(oversleep_ms=0.2, loop_spread=1.0, loop_ms=5.0)


def result_at_the_bounds(figures: tuple[Figure, ...]) -> dict[str, Any]:
    """A result in which each figure is exactly at its gate. A figure without a gate is 1."""
    result: dict[str, Any] = {"python": "3", "server": "valkey", "core": "pure", "cpus": 2, "rounds": 5}
    for figure in figures:
        *path, last = figure.key.split(".")
        place = result
        for step in path:
            place = place.setdefault(step, {})
        bounds = [bound for bound in (figure.at_least, figure.at_most) if bound is not None]
        place[last] = bounds[0] if bounds else 1
    return result


@pytest.mark.parametrize(("rate", "met"), [(100, True), (250.5, True), (99.99, False), (math.nan, False)])
def test_a_lower_bound_holds_from_the_bound_upwards(rate: float, met: bool) -> None:
    """A gate of at least 100 is met by a figure of 100 or more. It is missed by a smaller figure and by NaN."""
    assert FAST.met({"rate": {"median": rate}}) is met


@pytest.mark.parametrize(("commands", "met"), [(0, True), (1, False), (math.nan, False)])
def test_an_upper_bound_holds_up_to_the_bound(commands: float, met: bool) -> None:
    """A gate of at most 0 is met by 0 and missed by 1."""
    assert QUIET.met({"idle": commands}) is met


@pytest.mark.parametrize("result", [{}, {"rate": None}, {"rate": {"median": None}}, {"rate": {"median": True}}])
def test_a_figure_that_was_not_measured_misses_its_gate(result: dict[str, Any]) -> None:
    """A figure without a measured number misses its gate."""
    assert not FAST.met(result)


def test_a_missed_gate_is_told_with_figure_value_and_bound() -> None:
    """For each missed gate, `missed` gives one line with the figure, its value and the gate. Other figures have no
    line."""
    assert missed([FAST, QUIET, CONTEXT], {"rate": {"median": 41}, "idle": 0}) == [
        "rate.median: 41 msg/s, the gate is >= 100"
    ]


@pytest.mark.parametrize("name", BENCHMARKS)
def test_the_command_fails_exactly_when_a_gate_is_missed(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--check` exits with 0 if all figures are at their gates. If a gate is missed, it exits with 1 and names it."""
    monkeypatch.setattr(fitness, "measure", lambda: FIT)
    benchmark = import_module(f"benchmarks.{name}")
    gated = [figure for figure in benchmark.FIGURES if figure.bound]
    for broken in [None, *gated]:
        result = result_at_the_bounds(benchmark.FIGURES)
        if broken is not None:
            *path, last = broken.key.split(".")
            place = result
            for step in path:
                place = place[step]
            place[last] += -0.01 if broken.at_least is not None else 0.01
        monkeypatch.setattr(benchmark, "run", lambda _, result=result, **_options: result)
        assert command.main([name, "--json", "--check"]) == (0 if broken is None else 1)
        out, err = capsys.readouterr()
        assert err.count("gate missed:") == len(json.loads(out)["missed"]) == (0 if broken is None else 1)
        assert broken is None or broken.key in err


@pytest.mark.parametrize(
    ("unfit", "reason"),
    [(replace(FIT, oversleep_ms=9.5), "woke 9.5 ms late"), (replace(FIT, loop_spread=2.0), "by a factor of 2.00")],
    ids=["oversleep", "loops"],
)
def test_an_unfit_machine_neither_passes_nor_fails(
    unfit: Fitness, reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If the machine is unfit before or after the run, `--check` exits with 3, says why, and judges no gate."""
    result = result_at_the_bounds(purgatory.FIGURES) | {"new_vs_old_low": 0.1}
    monkeypatch.setattr(purgatory, "run", lambda _: dict(result))
    for measured in ([unfit, FIT], [FIT, unfit]):
        monkeypatch.setattr(fitness, "measure", iter(measured).__next__)
        assert command.main(["purgatory", "--json", "--check"]) == 3
        out, err = capsys.readouterr()
        (found,) = json.loads(out)["fitness"]["unfit"]
        assert reason in found
        assert found in err
        assert "gate missed" not in err


def test_without_check_an_unfit_machine_is_only_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without `--check`, the table says that the machine is unfit, and the exit code is 0."""
    monkeypatch.setattr(purgatory, "run", lambda _: result_at_the_bounds(purgatory.FIGURES))
    monkeypatch.setattr(fitness, "measure", lambda: replace(FIT, oversleep_ms=50.0))
    assert command.main(["purgatory"]) == 0
    assert "not fit to measure: before the run a sleeping thread woke 50.0 ms late" in capsys.readouterr().out


def test_this_machine_can_be_measured() -> None:
    """`fitness.measure` runs on the real machine: both times are above 0, and `loop_spread` is at least 1."""
    found = fitness.measure()
    assert found.oversleep_ms > 0
    assert found.loop_spread >= 1
    assert found.loop_ms > 0


def test_the_gates_are_those_that_were_promised() -> None:
    """The gates of the benchmarks are those listed in this test. So whoever loosens a gate must change the test too."""
    gates = {
        figure.key: figure.bound for figure in (*store.FIGURES, *dispatch.FIGURES, *purgatory.FIGURES) if figure.bound
    }
    assert gates == {
        "schedule_vs_zadd": ">= 0.8",
        "bytes_per_message": "<= 260",
        "stall_vs_script": "<= 3",
        "burst_memory_vs_xadd": ">= 0.7",
        "burst_streams_vs_xadd": ">= 0.7",
        "lateness_vs_bare.p50": "<= 3",
        "lateness_vs_bare.p99": "<= 5",
        "early": "<= 0",
        "lost": "<= 0",
        "wakeup_vs_bare": "<= 3",
        "idle_commands": "<= 0",
        "new_vs_old_low": ">= 3",
        "new_vs_old_high": ">= 3",
        "cpu_vs_bare": "<= 1.5",
    }
    gates = {figure.key: figure.bound for figure in (*spark.FIGURES, *simulator.FIGURES) if figure.bound}
    assert gates == {
        "writer_vs_plain": ">= 0.9",
        "reader_vs_plain_write": ">= 2.5",
        "backtest_vs_bare": "<= 25",
        "slo_vs_bare": "<= 20",
        "dlq_vs_bare": "<= 8",
        "history_vs_bare": "<= 250",
        "violations": "<= 0",
        "safeguards": ">= 30",
        "safeguards_missed": "<= 0",
    }
    assert {figure.key: figure.bound for figure in dashboard.FIGURES if figure.bound} == {
        "first_byte_ms.max": "<= 200",
        "stall_ms": "<= 5",
        "dispatch_vs_alone": ">= 0.95",
        "assets_gzip_kb": "<= 60",
    }
    assert {figure.key: figure.bound for figure in fairness.FIGURES if figure.bound} == {
        "others_p99_ms": "<= 50",
        "share_error": "<= 0.05",
        "burst_vs_unfair": ">= 0.8",
        "off_vs_before": ">= 0.95",
        "early": "<= 0",
    }
    gates = {figure.key: figure.bound for figure in (*wheel.FIGURES, *wheel.JVM_FIGURES) if figure.bound}
    assert gates == {
        "compiled_schedule_vs_floor": "<= 1.5",
        "pure_schedule_vs_handle": "<= 2.5",
        "compiled_vs_kombu_100k.expire": ">= 10",
        "compiled_vs_heapq_90cancelled.10k": ">= 5",
        "compiled_vs_heapq_90cancelled.100k": ">= 5",
        "pure_vs_heapq_90cancelled_10k": ">= 2",
        "compiled_vs_kombu_10k.add": ">= 8",
        "compiled_vs_kombu_10k.expire": ">= 10",
        "bytes_per_timer.pure": "<= 130",
        "bytes_per_timer.compiled": "<= 100",
        "kept_after_cancel.pure": "<= 10",
        "kept_after_cancel.compiled": "<= 10",
        "wakeups_after_cancel": "<= 0",
        "lateness_ms.threads.p50": "<= 3 x baseline.lateness_ms.threads.p50",
        "lateness_ms.threads.p99": "<= 5 x baseline.lateness_ms.threads.p99",
        "lateness_ms.asyncio.p50": "<= 3 x baseline.lateness_ms.asyncio.p50",
        "lateness_ms.asyncio.p99": "<= 5 x baseline.lateness_ms.asyncio.p99",
        "early": "<= 0",
        "vs_kafka.add": ">= 1",
        "vs_kafka.expire": ">= 3",
        "vs_netty.add": ">= 0.9",
    }

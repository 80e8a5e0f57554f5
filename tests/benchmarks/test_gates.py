"""The gates of the benchmarks, which are limits for figures, and how the command line reports them."""

from __future__ import annotations

import json
import math
from importlib import import_module
from typing import Any

import pytest

from benchmarks import __main__ as command
from benchmarks import dispatch, purgatory, store, wheel
from benchmarks.__main__ import BENCHMARKS
from benchmarks.figures import Figure, missed

FAST = Figure("rate.median", "msg/s", "how fast", at_least=100)
QUIET = Figure("idle", "commands", "how quiet", at_most=0)
CONTEXT = Figure("cpus", "", "context")


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
    """The gate is met at the bound and above. It is missed below the bound, and if the figure is no number."""
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
    """A line names the figure, the value and the gate. A figure without a gate has no line."""
    assert missed([FAST, QUIET, CONTEXT], {"rate": {"median": 41}, "idle": 0}) == [
        "rate.median: 41 msg/s, the gate is >= 100"
    ]


@pytest.mark.parametrize("name", BENCHMARKS)
def test_the_command_fails_exactly_when_a_gate_is_missed(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--check` exits with 0 if all figures are at their gates. If a gate is missed, it exits with 1 and names it."""
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


def test_the_gates_are_those_that_were_promised() -> None:
    """The gates are those listed here, so whoever loosens a gate has to change this test too."""
    gates = {
        figure.key: figure.bound for figure in (*store.FIGURES, *dispatch.FIGURES, *purgatory.FIGURES) if figure.bound
    }
    assert gates == {
        "schedule_vs_zadd": ">= 0.8",
        "bytes_per_message": "<= 350",
        "max_stall_ms": "<= 5",
        "burst_memory_msgs_per_s": ">= 50,000",
        "burst_streams_msgs_per_s": ">= 20,000",
        "lateness_ms.p50": "<= 1.5",
        "lateness_ms.p99": "<= 10",
        "early": "<= 0",
        "lost": "<= 0",
        "wakeup_ms.p50": "<= 3",
        "idle_commands": "<= 0",
        "new_vs_old_low": ">= 3",
        "new_vs_old_high": ">= 3",
        "cpu_vs_bare": "<= 1.5",
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
        "lateness_ms.threads.p50": "<= 1",
        "lateness_ms.threads.p99": "<= 5",
        "lateness_ms.asyncio.p50": "<= 1",
        "lateness_ms.asyncio.p99": "<= 5",
        "early": "<= 0",
        "vs_kafka.add": ">= 1",
        "vs_kafka.expire": ">= 3",
    }

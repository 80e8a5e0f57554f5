"""Each ratio of the wheel benchmark compares times of the same round.

The result also has the spread of each ratio over the rounds, and its baseline.
"""

from __future__ import annotations

import pytest

from benchmarks import wheel
from benchmarks.wheel import jvm
from benchmarks.wheel.mixes import Mix
from benchmarks.wheel.ratios import Rounds, compare

UNIFORM: Mix = "uniform"
TIMES: Rounds = {
    "wheel, compiled": [10.0, 20.0, 10.0],
    "wheel, pure": [40.0, 80.0, 44.0],
    "heapq": [100.0, 200.0, 120.0],
    "kombu": [200.0, 400.0, 180.0],
    "floor": [8.0, 16.0, 10.0],
    "handle only": [20.0, 40.0, 20.0],
}
PLAIN = {(UNIFORM, count): (TIMES, TIMES) for count in (10_000, 100_000)}
MIXED = {(UNIFORM, count): TIMES for count in (10_000, 100_000)}


def test_each_gated_ratio_has_its_rounds_and_its_baseline() -> None:
    """The value is the median of the rounds' ratios. A round in which all times are doubled changes no ratio."""
    found = compare(PLAIN, MIXED)
    for figure in (one for one in wheel.FIGURES if one.unit == "x"):
        spread = figure.spread(found)
        assert spread is not None, figure.key
        assert spread["min"] <= spread["median"] <= spread["max"]
        assert figure.value(found) == spread["median"]
        assert figure.baseline_value(found) is not None, figure.key
    assert found["spread"]["compiled_schedule_vs_floor"] == {"min": 1.0, "median": 1.25, "max": 1.25}
    assert found["compiled_vs_kombu_10k"] == {"add": 20.0, "expire": 20.0}
    assert found["baseline"]["heapq_90cancelled_ns"] == {"10k": 120.0, "100k": 120.0}
    assert found["baseline"]["kombu_ns_10k"] == {"add": 200.0, "expire": 200.0}


@pytest.mark.parametrize("absent", ["wheel, compiled", "kombu"])
def test_a_subject_that_was_not_measured_has_no_ratio(absent: str) -> None:
    """The ratios of that subject are None and have no spread, so they miss their gates. Other ratios are unchanged."""
    times = {name: values for name, values in TIMES.items() if name != absent}
    found = compare({(UNIFORM, count): (times, times) for count in (10_000, 100_000)}, {(UNIFORM, 10_000): times})
    assert found["compiled_vs_kombu_10k"] == {"add": None, "expire": None}
    assert "compiled_vs_kombu_10k.add" not in found["spread"]
    assert found["pure_schedule_vs_handle"] == 2.0


def test_the_ratios_to_the_jvm_have_their_rounds() -> None:
    """Each ratio is the time of Kafka's or Netty's timer divided by ours. Without our times there is no ratio."""
    theirs = {"kafka add": 200.0, "kafka add, clock apart": 150.0, "kafka expire": 600.0, "kafka caller": 90.0}
    ours = {"ours add": 100.0, "ours expire": 100.0, "ours caller": 30.0}
    rounds = [theirs | ours | {"netty add": netty} for netty in (80.0, 90.0, 120.0)]
    found = jvm.figures(rounds)
    assert found["vs_kafka"] == {"add": 2.0, "add_clock_apart": 1.5, "expire": 6.0, "expire_caller": 3.0}
    assert found["vs_netty"] == {"add": 0.9}
    assert found["spread"]["vs_netty.add"] == {"min": 0.8, "median": 0.9, "max": 1.2}
    assert [figure.key for figure in wheel.JVM_FIGURES if figure.spread(found) is None] == []
    without = jvm.figures([theirs | {"netty add": 80.0}])
    assert (without["vs_netty"], without["spread"]) == ({"add": None}, {})

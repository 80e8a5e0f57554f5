"""The benchmarks on Kafka run with small sizes. They start their own broker and store server."""

from __future__ import annotations

import json

import pytest

from benchmarks import kafka
from benchmarks.growth import partitions
from benchmarks.growth.case import Sizes
from benchmarks.narration import Narration

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]


def test_the_kafka_benchmark_measures_every_figure() -> None:
    """One small round gives a number for each figure, and no message is early."""
    sizes = kafka.Sizes(rounds=1, messages=500, lateness_rounds=1, lateness_s=0.2, mixed=40, longest_s=2.0)
    result = kafka.run(sizes)
    assert [figure.key for figure in kafka.FIGURES if figure.value(result) is None] == []
    assert result["early"] == 0
    assert {"python", "server", "cpus", "rounds", "kafka"} <= set(json.loads(json.dumps(result)))


def test_the_growth_over_partitions_is_measured() -> None:
    """A small run measures each quantity at each number of partitions, and checks its growth."""
    result = partitions.CASE.run(Sizes((1, 2, 4), (256,), 400), Narration(3))
    assert list(result["quantities"]) == ["message_us", "service_us", "store_us"]
    for one in result["quantities"].values():
        assert list(one["measured"]) == ["1", "2", "4"]
        assert min(one["measured"].values()) > 0
        assert one["check"]["size"] == 4

"""A small run of the Kafka benchmark works, with its own broker and server."""

from __future__ import annotations

import json

import pytest

from benchmarks import kafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]


def test_the_kafka_benchmark_measures_every_figure() -> None:
    """One small round gives a number for each figure, and no message is early."""
    sizes = kafka.Sizes(rounds=1, messages=500, lateness_rounds=1, lateness_s=0.2, mixed=40, longest_s=2.0)
    result = kafka.run(sizes)
    assert [figure.key for figure in kafka.FIGURES if figure.value(result) is None] == []
    assert result["early"] == 0
    assert {"python", "server", "cpus", "rounds", "kafka"} <= set(json.loads(json.dumps(result)))

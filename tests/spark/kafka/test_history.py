"""An attempt history in a topic of a real broker gives the same reports as the same history in a file."""

from __future__ import annotations

import json
import math
import random
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from retry_topic.brokers.kafka import KafkaBroker
from retry_topic.history import export
from retry_topic.history.attempt import Attempt
from retry_topic.message import Message
from retry_topic.spark.jobs import backtest, slo
from retry_topic.spark.jobs.history import load_history, store_history, topic_history
from retry_topic.spark.jobs.store import place_of
from retry_topic.spark.kafka.connector import choose
from wheel_sched.cli.program import cli
from wheel_sched.errors import ConfigError
from wheel_sched.store import History

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from retry_topic.spark.kafka.connector import Connector
    from tests.servers.kafka import TemporaryKafka
    from wheel_sched.store import DelayStore

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(600)]


def attempts(count: int) -> list[Attempt]:
    """Attempts of `count` messages. Most messages recover after an exponentially distributed time, and delays
    double."""
    rng = random.Random(11)
    rows = []
    for n in range(count):
        first, wait_ms = 1_700_000_000_000 + n * 50, 0
        recovers_ms = rng.expovariate(1 / 20_000) if rng.random() < 0.9 else math.inf
        for attempt in range(1, 8):
            ok = attempt > 1 and wait_ms >= recovers_ms
            outcome = "ok" if ok else "dead" if attempt == 7 else "failed"
            due = None if attempt == 1 else first + wait_ms
            rows.append(
                Attempt(f"m{n}", "orders", attempt, due, first + wait_ms + 2, outcome, None if ok else "shop.Timeout")
            )
            if ok:
                break
            wait_ms += int(1_500 * 2**attempt * rng.uniform(0.7, 1.3))
    return rows


def test_a_topic_shows_what_a_file_and_the_log_show(
    spark: SparkSession,
    kafka: TemporaryKafka,
    broker: KafkaBroker,
    at: dict[str, str],
    name: str,
    store: DelayStore,
    redis_url: str,
    tmp_path: Path,
) -> None:
    """The attempt history of a store is written to a topic. Both connectors, "python" and "jvm", read the same history
    from it.

    Repeated rows count once, and unreadable rows are counted. All reports of one read see the same rows, although the
    topic grows meanwhile.
    """
    rows = attempts(300)
    History(store).append([(row.id, row.encode()) for row in rows], keep=100_000)
    logged = store_history(spark, place_of(redis_url))
    file = str(tmp_path / "attempts.parquet")
    assert export(store, file).rows == len(rows)
    broker.create_topic(name)
    json_rows = logged.selectExpr("id key", "to_json(struct(*)) value")
    json_rows.write.format("wheelsched-kafka").mode("append").options(**at, topic=name, job_id=name).save()
    expected = backtest(load_history(spark, file), resamples=5).as_dict()
    assert backtest(logged, resamples=5).as_dict() == expected
    assert expected["groups"][0]["messages"] == 300
    again = json.dumps(rows[0]._asdict()).encode()
    drifted = json.dumps(rows[0]._asdict() | {"id": "x", "attempt": "two"}).encode()
    broker.publish([Message(name, again), Message(name, b"no row"), Message(name, b""), Message(name, drifted)])
    assert choose(spark, (("bootstrap.servers", kafka.bootstrap),), "auto") == "jvm"  # the connector's jars are there
    ways: list[Connector] = ["python", "jvm"]
    for way in ways:
        history = topic_history(spark, kafka.bootstrap, name, connector=way)
        broker.publish([Message(name, json.dumps(rows[1]._asdict() | {"id": f"later-{way}"}).encode())])
        found = backtest(history, resamples=5).as_dict()
        later = ways.index(way)  # each earlier pass added one row to the topic
        assert (found["left_out"], found["attempts"]) == (3, len(rows) + 3 + later)
        if not later:
            assert found["groups"] == expected["groups"]
        assert slo(history).deliveries == sum(row.due_ms is not None for row in rows) + later
    result = CliRunner().invoke(cli, ["--kafka", kafka.bootstrap, "spark", "backtest", f"kafka:{name}", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["attempts"] == len(rows) + 3 + 2


def test_a_topic_without_a_history_says_so(
    spark: SparkSession, kafka: TemporaryKafka, broker: KafkaBroker, name: str
) -> None:
    """A missing or empty topic is an error, because an empty report would look like a good result."""
    with pytest.raises(ConfigError, match="there is no topic"):
        topic_history(spark, kafka.bootstrap, f"{name}-no")
    broker.create_topic(name)
    with pytest.raises(ConfigError, match="there is no attempt history"):
        topic_history(spark, kafka.bootstrap, name)
    result = CliRunner().invoke(cli, ["spark", "slo", f"kafka:{name}"])
    assert result.exit_code == 2
    assert "which cluster?" in result.stderr

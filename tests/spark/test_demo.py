"""The jobs on the real output of `make demo`: its attempt history and its dead letters."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retry_topic.demo.run import run
from retry_topic.history import export
from retry_topic.policy import load_policies
from retry_topic.policy.dumping import dump_policies
from retry_topic.spark.jobs import backtest, dead_letters, replay, slo, triage
from retry_topic.spark.jobs.history import load_history, store_history
from retry_topic.spark.jobs.store import place_of
from wheel_sched.store import open_store
from wheel_sched.store.embedded import EmbeddedServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


def test_the_jobs_read_what_the_demo_left(spark: SparkSession, tmp_path: Path) -> None:
    """The demo's attempt history gives the same report from the store, from Parquet and from JSON Lines.

    All dead letters of the demo are replayed once.
    """
    folder = tmp_path / "demo"
    report = run(count=400, folder=folder)
    assert report.accounted
    with EmbeddedServer.open(folder) as server, open_store(server.url) as store:
        place = place_of(server.url)
        files = [str(tmp_path / name) for name in ("attempts.parquet", "attempts.jsonl")]
        assert len({export(store, file).rows for file in files}) == 1
        histories = [store_history(spark, place), *(load_history(spark, file) for file in files)]
        found = [backtest(history, resamples=5) for history in histories]
        assert found[0].as_dict() == found[1].as_dict() == found[2].as_dict()
        assert found[0].left_out == 0
        ended = Counter(row["outcome"] for row in histories[0].collect())
        assert ended["dead"] == sum(report.dead.values())
        # the demo killed a service: attempts that it had not yet written to the history may be missing
        went_later = sum(count for attempt, count in report.delivered_by_attempt.items() if attempt != "1")
        assert 0.9 * went_later <= ended["ok"] <= went_later
        busy = next(v for v in found[0].verdicts if v.error_class.endswith("WebhookRefused"))
        assert busy.messages >= 30
        assert busy.proposed["tries"] <= busy.today["tries"] + 0.5
        text = dump_policies(found[0].policies)
        assert load_policies(text).for_topic("airports").rules[0].errors
        late = slo(histories[0], target_ms=60_000, objective=0.5)
        assert late.early == 0
        assert late.deliveries >= ended["ok"]
        letters = dead_letters(spark, place)
        assert sum(row["letters"] for row in triage(letters).collect()) == ended["dead"]
        assert replay(letters, place).replayed == ended["dead"]
        assert (store.counts().total("dead"), store.counts().total("due")) == (0, ended["dead"])
        assert replay(letters, place).replayed == 0

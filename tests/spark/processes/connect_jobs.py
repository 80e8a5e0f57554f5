"""The source and the jobs over a Spark Connect session; a JSON object of what they did on the last line."""

from __future__ import annotations

import json
import sys

from retry_topic.spark import spark_session
from retry_topic.spark.jobs import audit, backfill, backtest, capacity, dead_letters, replay, slo, triage
from retry_topic.spark.jobs.capacity import waiting
from retry_topic.spark.jobs.history import store_history
from retry_topic.spark.jobs.store import place_of


QUICK = {  # queries this small are over before their code is compiled or their plan revised
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}


def main(url: str, source: str, checkpoint: str) -> None:
    spark = spark_session(settings=QUICK)
    assert "connect" in type(spark).__module__
    place = place_of(url)
    rows = spark.range(0, 300, 1, 2).selectExpr("id n")
    columns = {
        "id": "concat('r', n)",
        "due_ms": "4000000000000 + n",
        "topic": "'reminders'",
        "value": "to_json(struct(n))",
    }
    told = {"stored": backfill(rows, place, job_id="r", columns=columns).stored}
    told["stored_again"] = backfill(rows, place, job_id="r", columns=columns).stored
    letters = dead_letters(spark, place)
    told["letters"] = sum(row["letters"] for row in triage(letters).collect())
    told["replayed"] = replay(letters, place).replayed
    told["sized"] = capacity(waiting(spark, place), shards=place.shards, sample=100).messages
    history = store_history(spark, place)
    told["late"] = slo(history, target_ms=1).late
    told["groups"] = len(backtest(history, resamples=5).verdicts)
    told["flaws"] = len(audit(spark, place).findings)
    frame = spark.readStream.schema("id string, value string").json(source)
    writer = frame.selectExpr("id", "4000000000000L due_ms", "'s' topic", "value").writeStream.format("wheelsched")
    query = writer.options(store=url, checkpointLocation=checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    told["streamed"] = spark.read.format("wheelsched").options(store=url, topic="s").load().count()
    spark.stop()
    print(json.dumps(told))  # noqa: T201  # the answer to the test


if __name__ == "__main__":
    main(*sys.argv[1:])

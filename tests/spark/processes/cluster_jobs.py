"""backfill and dlq on the cluster and the store that are given; a JSON object of what they did on the last line."""

from __future__ import annotations

import json
import sys
import time

from retry_topic.spark import spark_session
from retry_topic.spark.jobs import backfill, dead_letters, replay, triage
from retry_topic.spark.jobs.store import place_of


def main(master: str, url: str) -> None:
    settings = {
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "4",
    }
    spark = spark_session(master, app="cluster test", settings=settings)
    tracker = spark.sparkContext._jsc.sc().statusTracker()
    deadline = time.monotonic() + 120
    while (executors := len(tracker.getExecutorInfos()) - 1) < 2:  # the driver is one of them
        if time.monotonic() > deadline:
            raise SystemExit(f"{executors} of 2 executors came within 120 s")
        time.sleep(0.1)  # looked at again and again until the deadline
    place = place_of(url)
    rows = spark.range(0, 3_000, 1, 4).selectExpr("id n")
    columns = {
        "id": "concat('r', n)",
        "due_ms": "4000000000000 + n",
        "topic": "'reminders'",
        "value": "to_json(struct(n))",
    }
    told = {"executors": executors}
    told["stored"] = backfill(rows, place, job_id="r", columns=columns).stored
    told["stored_again"] = backfill(rows, place, job_id="r", columns=columns).stored
    letters = dead_letters(spark, place)
    told["letters"] = sum(row["letters"] for row in triage(letters).collect())
    told["replayed"] = replay(letters, place).replayed
    told["replayed_again"] = replay(letters, place).replayed
    spark.stop()
    print(json.dumps(told))  # noqa: T201  # the answer to the test


if __name__ == "__main__":
    main(*sys.argv[1:])

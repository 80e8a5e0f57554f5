"""An example program for a cluster: it schedules reminders for all customers and replays dead letters.

MASTER=spark://host:7077 deploy/spark/submit.sh deploy/spark/reminders.py redis://store:6379/0

A second run stores nothing and replays nothing: the store knows that it has stored the reminders under this job id,
and the replayed messages are no dead letters any more. The last line of stdout is a JSON object.
"""

from __future__ import annotations

import json
import sys

from retry_topic.spark import spark_session
from retry_topic.spark.jobs import backfill, dead_letters, replay, triage
from retry_topic.spark.jobs.dlq import select
from retry_topic.spark.jobs.store import place_of


def main(url: str) -> None:
    spark = spark_session()  # spark-submit sets the master
    place = place_of(url)
    customers = spark.range(0, 3_000, 1, 4).selectExpr("id customer", "4000000000000 + id remind_at")
    stored = backfill(
        customers,
        place,
        job_id="reminders-2096",
        columns={
            "id": "concat('reminder-', customer)",
            "due_ms": "remind_at",
            "topic": "'reminders'",
            "value": "to_json(struct(customer))",
        },
    ).stored
    letters = select(dead_letters(spark, place), where="topic = 'orders'")
    found = sum(row["letters"] for row in triage(letters).collect())
    replayed = replay(letters, place).replayed
    sys.stdout.write(json.dumps({"stored": stored, "letters": found, "replayed": replayed}) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])

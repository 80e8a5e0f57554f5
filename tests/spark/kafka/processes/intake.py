"""Runs the Spark intake in its own process, which a test kills.

Arguments: servers, store, group, checkpoint ("" for none).
"""

from __future__ import annotations

import sys

from retry_topic import RetryPolicy
from retry_topic.policy import Fixed
from retry_topic.spark import spark_session
from retry_topic.spark.jobs import intake
from retry_topic.spark.jobs.store import place_of


def main(servers: str, store: str, group: str, checkpoint: str) -> None:
    spark = spark_session("local[2]", settings={"spark.sql.shuffle.partitions": "2"})
    policy = RetryPolicy(delay=Fixed(base_ms=1))
    intake(spark, place_of(store), servers, group, policy, most=1_000, checkpoint=checkpoint or None)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The Spark jobs. Each returns a report or a DataFrame. With `dry_run=True`, a job that has it changes nothing."""

from retry_topic.spark.jobs.audit import audit
from retry_topic.spark.jobs.backfill import backfill
from retry_topic.spark.jobs.backtest import backtest
from retry_topic.spark.jobs.capacity import capacity
from retry_topic.spark.jobs.dead_topic import replay_topic, topic_letters
from retry_topic.spark.jobs.dlq import dead_letters, replay, triage
from retry_topic.spark.jobs.intake import intake
from retry_topic.spark.jobs.slo import slo

__all__ = [
    "audit",
    "backfill",
    "backtest",
    "capacity",
    "dead_letters",
    "intake",
    "replay",
    "replay_topic",
    "slo",
    "topic_letters",
    "triage",
]

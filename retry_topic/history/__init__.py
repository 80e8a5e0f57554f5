"""The attempt history: what became of each delivery of a message that failed at least once.

The retry service writes the failures (`ServiceConfig.history`), consumers write what went through at last
(`ConsumerConfig.history`), both into the log of the delay store: bounded, off unless asked for, and nothing waits for
it. `export` takes it out as Parquet or JSON Lines; `retry_topic.spark`'s `backtest` and `slo` read all three.
"""

from retry_topic.history.attempt import OUTCOMES, VERSION, Attempt, read_attempt, releasing_shard
from retry_topic.history.export import Exported, attempts_in, export
from retry_topic.history.writer import HistoryWriter

__all__ = [
    "OUTCOMES",
    "VERSION",
    "Attempt",
    "Exported",
    "HistoryWriter",
    "attempts_in",
    "export",
    "read_attempt",
    "releasing_shard",
]

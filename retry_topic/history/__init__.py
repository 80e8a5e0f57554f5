"""The attempt history: the outcome of each delivery of a message that failed at least once.

The retry service writes failed deliveries (`ServiceConfig.history`), and consumers write the final success
(`ConsumerConfig.history`). Both write into the history of the delay store. The history is bounded and off by default.
No consumer waits for it; the service writes the rows before it reads on. `what_if` says what another policy would have
done with the latest attempts. `export` writes the history to a file, as Parquet or JSON Lines. `backtest` and `slo` of
`retry_topic.spark` read the store and both kinds of files.
"""

from retry_topic.history.attempt import OUTCOMES, VERSION, Attempt, read_attempt, releasing_shard
from retry_topic.history.export import Exported, attempts_in, export
from retry_topic.history.latest import LATEST, LatestAttempts, latest_attempts
from retry_topic.history.what_if import CANNOT_KNOW, WhatIf, what_if
from retry_topic.history.writer import HistoryWriter

__all__ = [
    "CANNOT_KNOW",
    "LATEST",
    "OUTCOMES",
    "VERSION",
    "Attempt",
    "Exported",
    "HistoryWriter",
    "LatestAttempts",
    "WhatIf",
    "attempts_in",
    "export",
    "latest_attempts",
    "read_attempt",
    "releasing_shard",
    "what_if",
]

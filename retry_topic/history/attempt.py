"""One row of the attempt history, and its form as an entry of the store's event history: a JSON list, version first.

    [1, id, topic, attempt, due_ms, started_ms, outcome, error_class, shard]

New columns are added at the end; any other change raises the version. A row that cannot be read is skipped and counted.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from retry_topic.message.headers import RetryState
from wheel_sched.errors import Rejected
from wheel_sched.store.core.plans import shard_of
from wheel_sched.store.ordering import route_of

VERSION = 1
OUTCOMES = ("ok", "failed", "dead", "superseded")


class Attempt(NamedTuple):
    """A delivery that ended.

    Args:
        id: the message's id, the same for all its attempts. Each replay has its own id (`<id>r<replay>`).
        topic: the topic on which the message first failed.
        attempt: the number of the delivery, from 1.
        due_ms: when the delivery was due. None for the first delivery, which was not scheduled. None also if
            `started_ms` is not the start of the handler, so that nobody computes a wrong lateness from the two times.
        started_ms: when its handler started. If the consumer does not report the start: when the delivery failed, or
            when the intake took the failure in.
        outcome: "ok", "failed", "dead" (failed and given up), or "superseded" (failed, and another message of its key
            is retried in its place, see `retry_topic.policy.once_per_key`). A later row of the same attempt replaces an
            earlier one.
        error_class: the class of the failure's error.
        shard: the store's shard that held the message until the due time. None for the first delivery. None also when a
            message's source, not its id, decides its shard (`Connection.by_source`).
    """

    id: str
    topic: str
    attempt: int
    due_ms: int | None
    started_ms: int
    outcome: str
    error_class: str | None = None
    shard: int | None = None

    def encode(self) -> bytes:
        """The row as an entry of the store's event history."""
        return json.dumps([VERSION, *self], ensure_ascii=True, separators=(",", ":")).encode()


def releasing_shard(state: RetryState, number: int, shards: int | None) -> int | None:
    """The shard that released the attempt with this number; None for the first, or if `shards` is None.

    Args:
        state: the retry state of the message.
        number: the number of the attempt.
        shards: the number of shards; None if the id does not decide the shard.
    """
    if number <= 1 or shards is None:
        return None
    return shard_of(f"{state.id_base}.{number - 1}" if state.key_lock is None else route_of(state.key_lock), shards)


def read_attempt(entry: bytes) -> Attempt:
    """The row in an entry of the store's event history.

    Raises:
        Rejected: the entry has another version, or is no row.
    """
    try:
        found: Any = json.loads(entry)
        version, *values = found
        row = Attempt(*values[: len(Attempt._fields)])
    except (ValueError, TypeError, RecursionError) as error:
        raise Rejected(f"the entry ({len(entry)} bytes) is no row of a history; it stays in the log") from error
    if type(version) is not int or version != VERSION or not _is_sound(row):
        raise Rejected(f"the entry ({len(entry)} bytes) is no row of a history; it stays in the log")
    return row


def _is_sound(row: Attempt) -> bool:
    return (
        type(row.id) is str
        and type(row.topic) is str
        and type(row.attempt) is int
        and (row.due_ms is None or type(row.due_ms) is int)
        and type(row.started_ms) is int
        and row.outcome in OUTCOMES
        and (row.error_class is None or type(row.error_class) is str)
        and (row.shard is None or type(row.shard) is int)
    )

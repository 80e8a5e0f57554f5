"""Decodes items row by row, for two values of the data source's option `form`.

`letters`: messages with their retry headers. `damage`: what is wrong with each item, for the job `audit`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from retry_topic.dead_letters.selection import read_dead
from retry_topic.spark.source.schemas import LETTERS
from wheel_sched.store import DelayStore
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.items import Found, State
from wheel_sched.store.core.plans import shard_of
from wheel_sched.store.core.scan import Scanned
from wheel_sched.store.maintenance.operations import Inspect

Columns = dict[str, Any]  # name -> values, one for each row
Pages = Sequence[list[Scanned]]


def letters(shard: int, state: State, pages: Pages) -> Columns:
    """The columns for the option `form` = `letters`: each row is a message with its retry headers."""
    found = [*chain.from_iterable(pages)]
    rows = [_letter(state, item) for item in found]
    columns = _places(shard, state, found)
    columns.update({name: [row[name] for row in rows] for name in LETTERS if name not in columns})
    return columns


def _letter(state: State, item: Scanned) -> dict[str, Any]:
    record = item.record
    topic, body = (record.topic, record.body) if record else ("", b"")
    letter = read_dead(Found(item.id, state, item.score_ms, 0, topic, body, item.reason))
    found, message = letter.state, letter.message
    return {
        "topic": letter.topic,
        "target": message.topic if message else None,
        "reason": item.reason or None,
        "attempt": found.attempt,
        "replays": found.replays,
        "first_failed_ms": found.first_failed_ms,
        "last_failed_ms": found.last_failed_ms,
        "due_ms": found.due_ms,
        "error_class": found.error_class,
        "error_message": found.error_message,
        "fingerprint": found.error_fingerprint,
        "status": found.error_status,
        "consumer_group": found.consumer_group,
        "key": message.key if message else None,
        "value": message.value if message else None,
    }


def flaws(shard: int, state: State, pages: Pages, shards: int) -> Columns:
    """The columns of the form `damage`: what is wrong with each item (`flaw`, empty for a sound item)."""
    found = [*chain.from_iterable(pages)]
    return {
        **_places(shard, state, found),
        "route": [item.record.route if item.record else None for item in found],
        "flaw": [_flaw(shard, item, shards) for item in found],
    }


def _flaw(shard: int, item: Scanned, shards: int) -> str:
    if item.record is None:
        return "no record" if item.reason == "no record" else "unreadable record"
    return "" if shard_of(item.record.route or item.id, shards) == shard else "wrong shard"


def _places(shard: int, state: State, found: list[Scanned]) -> Columns:
    count = len(found)
    return {
        "id": [item.id for item in found],
        "state": [state] * count,
        "shard": [shard] * count,
        "at_ms": [item.score_ms for item in found],
    }


def without_place(store: DelayStore, shard: int) -> Iterator[Columns]:
    """The records that are in no state's index, so that no listing shows them."""
    for name in ("body", "deadbody"):
        cursor = "0"
        while True:
            (answer,) = store.execute([Call(shard, Inspect(name, cursor))])
            if isinstance(answer, Exception):
                raise answer
            cursor, lost = answer
            if lost:
                unknown: dict[str, Any] = {
                    "state": "",
                    "shard": shard,
                    "at_ms": None,
                    "route": None,
                    "flaw": "no place",
                }
                yield {"id": lost, **{name: [value] * len(lost) for name, value in unknown.items()}}
            if cursor == "0":
                break

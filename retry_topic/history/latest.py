"""Reads the latest attempts of a store's history. The number of attempts is bounded, however long the history is."""

from __future__ import annotations

from typing import NamedTuple

from retry_topic.history.attempt import Attempt, read_attempt
from wheel_sched.errors import Rejected
from wheel_sched.store import DelayStore, History

LATEST = 5_000


class LatestAttempts(NamedTuple):
    """The latest attempts: rows in no particular order, each once, and how many entries could not be read."""

    rows: list[Attempt]
    unreadable: int


def latest_attempts(store: DelayStore, most: int = LATEST) -> LatestAttempts:
    """The latest attempts of each shard, about `most` in all. Changes nothing.

    All attempts of a message are in one shard, so only the oldest ones of a shard may lack attempts before them.

    Raises:
        StoreError: a shard cannot be reached.
    """
    found: dict[tuple[str, str, int], Attempt] = {}
    unreadable = 0
    for shard in range(store.shards):
        left, last = -(-most // store.shards), ""
        while left > 0:
            page = History(store).newest(shard, last, left)
            if not page.entries:
                break
            last, left = page.last, left - len(page.entries)
            for entry in page.entries:
                try:
                    row = read_attempt(entry)
                except Rejected:
                    unreadable += 1
                    continue
                # from the newest row on; a lost reply repeats a row, and a superseded attempt has a newer one
                found.setdefault((row.topic, row.id, row.attempt), row)
    return LatestAttempts(list(found.values()), unreadable)

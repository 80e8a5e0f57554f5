"""Numbers for people about fair topics: how many items wait, and which keys have the most overdue items.

The functions read a bounded number of topics and keys, so they cost the same over a million keys. From each shard they
read the keys whose turn comes next, and keys that wait because their items in flight are at their limit. If a topic has
more active keys, `exact` is False, and a key with more overdue items may be missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wheel_sched.store.core.counts import Counts
from wheel_sched.store.core.delay_store import DelayStore
from wheel_sched.store.fair_shares import FairKey, FairShares

MOST_TOPICS = 50
READ_KEYS = 200  # of each topic and shard
TOP = 10


@dataclass(frozen=True, slots=True)
class FairTopicNumbers:
    """The numbers of one fair topic.

    Args:
        topic: its name.
        active: how many keys have overdue items and may go on.
        waiting: how many overdue items the keys that were read have.
        served: how many items of the topic were completed so far.
        at_limit: of the keys that were read, those that wait until one of their items in flight has ended.
        keys: the keys with the most overdue items, in order of this number, greatest first.
        rest: how many overdue items the other keys have.
        exact: whether all active keys were read. If not, `waiting` and `rest` are too low.
    """

    topic: str
    active: int
    waiting: int
    served: int
    at_limit: frozenset[str]
    keys: Sequence[FairKey]
    rest: int
    exact: bool

    def as_dict(self) -> dict[str, Any]:
        """The numbers as data for JSON."""
        return {
            "topic": self.topic,
            "active_keys": self.active,
            "waiting": self.waiting,
            "served": self.served,
            "capped_keys": len(self.at_limit),
            "exact": self.exact,
            "keys": self.keys_as_dicts(),
            "rest": self.rest,
        }

    def keys_as_dicts(self) -> list[dict[str, Any]]:
        """The keys as data for JSON."""
        return [
            {
                "key": key.key,
                "waiting": key.waiting,
                "oldest_due_ms": key.oldest_due_ms,
                "in_flight": key.in_flight,
                "weight": key.weight,
                "capped": key.key in self.at_limit,
            }
            for key in self.keys
        ]


def fair_topic(store: DelayStore, topic: str, counts: Counts, top: int = TOP) -> FairTopicNumbers | None:
    """The numbers of a topic; None if it is not fair.

    Args:
        store: the store.
        topic: the topic.
        counts: the counters of the store.
        top: how many keys to return. Defaults to 10.

    Raises:
        StoreError: the store did not answer.
    """
    found = FairShares(store).look(topic, READ_KEYS)
    if found is None:
        return None
    keys = sorted((key for key in found.keys if key.waiting or key.in_flight), key=lambda key: (-key.waiting, key.key))
    shown, cap, waiting = keys[:top], found.settings.cap, sum(key.waiting for key in keys)
    return FairTopicNumbers(
        topic,
        found.active,
        waiting,
        counts.ever.get(("completed", topic), 0),
        frozenset(key.key for key in found.keys if key.capped or (key.waiting and 0 < cap <= key.in_flight)),
        shown,
        waiting - sum(key.waiting for key in shown),
        found.active <= READ_KEYS,
    )


def fair_topics(store: DelayStore, counts: Counts, top: int = TOP) -> list[FairTopicNumbers]:
    """The numbers of the fair topics, at most 50 of them. The arguments are those of `fair_topic`.

    Raises:
        StoreError: the store did not answer.
    """
    topics = FairShares(store).topics()[:MOST_TOPICS]
    found = (fair_topic(store, topic, counts, top) for topic in topics)
    return [one for one in found if one is not None]

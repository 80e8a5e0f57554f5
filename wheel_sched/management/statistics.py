"""The numbers of a namespace: its items by state and topic, what happened so far, flow control, and who is live."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wheel_sched.config import Loaded
from wheel_sched.extensions import StatsPart, installed, resolve
from wheel_sched.management.overdue import OverdueItems, overdue
from wheel_sched.store import Counts, DelayStore, LiveMember, Members
from wheel_sched.store.core.items import STATES
from wheel_sched.store.fair_shares.numbers import FairTopicNumbers, fair_topics
from wheel_sched.store.ordering import OrderedKeys
from wheel_sched.store.rate_limits import Flow, RateLimits

EVENTS = (
    *("accepted", "completed", "cancelled", "lapsed", "died", "requeued", "deleted", "trimmed"),
    *("replaced", "dropped"),  # by debounce and collapse, see `wheel_sched.store.once_per_key`
)
CIRCUITS = {"c": "closed", "o": "open", "h": "half open"}  # `Flow.state` -> its word


@dataclass(frozen=True, slots=True)
class Statistics:
    """The numbers that the store and the installed extensions returned.

    Args:
        namespace: the namespace that was asked.
        counts: the store's counters.
        shards: shard count of the namespace.
        locked: how many ordering keys are locked.
        parked: topic -> how many of its messages are parked behind a failed message of their key.
        flows: the rate limits and circuits.
        fair: the fair topics, with the keys that have the most overdue items.
        late: the items that are due and not released.
        members: the live members.
        parts: what the extensions add.
    """

    namespace: str
    counts: Counts
    shards: int
    locked: int
    parked: Mapping[str, int]
    flows: Sequence[Flow]
    fair: Sequence[FairTopicNumbers]
    late: OverdueItems
    members: Sequence[LiveMember]
    parts: Sequence[StatsPart]

    def as_dict(self) -> dict[str, Any]:
        """The numbers as data for JSON."""
        return {
            **counts_as_dict(self.counts, self.shards, self.namespace),
            "ordered": {
                "locked_keys": self.locked,
                "parked": {topic: count for topic, count in self.parked.items() if count},
            },
            "flows": [flow_as_dict(flow) for flow in self.flows],
            "fair": [one.as_dict() for one in self.fair],
            "overdue": self.late.count,
            "members": dict(Counter(one.member.kind for one in self.members)),
            **{name: value for part in self.parts for name, value in part.fields.items()},
        }


def gather(store: DelayStore, loaded: Loaded) -> Statistics:
    """Ask the store, and the parts of the installed extensions, for their numbers.

    Args:
        store: the store of the namespace.
        loaded: the settings, which the extensions' parts receive.

    Raises:
        StoreError: the store did not answer.
    """
    counts = store.counts()
    locked, parked = OrderedKeys(store).counts(counts.topics)
    flows, late = RateLimits(store).flows(), overdue(store)
    targets = [target for one in installed().extensions for target in one.stats]
    parts = [resolve(target)(store, loaded) for target in targets]
    namespace = loaded.settings.namespace
    fair, members = fair_topics(store, counts), Members(store).live()
    return Statistics(namespace, counts, store.shards, locked, parked, flows, fair, late, members, parts)


def flow_as_dict(flow: Flow) -> dict[str, Any]:
    """A rate limit or a circuit as data for JSON."""
    names = (
        ("granted", "rate", "budget", "interval", "spread")
        if flow.destination is None
        else ("refused", "opens", "probes")
    )
    state = {} if flow.destination is None else {"circuit": CIRCUITS.get(flow.state)}
    return {
        "topic": flow.topic,
        "destination": flow.destination,
        **state,
        **{"interval_us" if name == "interval" else name: flow.numbers.get(name, 0) for name in names},
    }


def counts_as_dict(counts: Counts, shards: int, namespace: str) -> dict[str, Any]:
    """The counts of the store as data for JSON."""
    now_ms = counts.now_us // 1000
    head_ms = counts.due_head_ms
    return {
        "namespace": namespace,
        "shards": shards,
        "now_ms": now_ms,
        **{state: counts.total(state) for state in STATES},
        "next_due_ms": head_ms,
        "overdue_ms": 0 if head_ms is None else max(0, now_ms - head_ms),
        "ever": {event: counts.happened(event) for event in EVENTS},
        "topics": {
            topic: {
                **{state: counts.now.get((state, topic), 0) for state in STATES},
                "paused_since_ms": counts.paused.get(topic),
            }
            for topic in counts.topics
        },
        "epoch": counts.epoch,
        "clock_jumps": counts.jumps,
        "frozen": counts.frozen,
    }

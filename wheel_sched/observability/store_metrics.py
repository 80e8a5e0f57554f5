"""Asks the store for the numbers of one scrape, and makes metrics of its answers.

No label holds an id or a destination, because a namespace may have any number of them. Only ten keys of a fair topic
have a label of their own. Extensions add metrics of their topics. Any thread may call the functions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from wheel_sched.errors import StoreError, StoreUnavailable, WheelSchedError
from wheel_sched.escaping import escaped, logger_of
from wheel_sched.extensions import installed, resolve
from wheel_sched.observability.families import Metric, Samples, counter, gauge
from wheel_sched.store import Counts, DelayStore, LiveMember, Member, Members
from wheel_sched.store.fair_shares.numbers import FairTopicNumbers, fair_topics
from wheel_sched.store.ordering import OrderedKeys
from wheel_sched.store.rate_limits import Flow, RateLimits

logger = logger_of("wheel_sched.observability")

OTHER_KEYS = "(others)"


class StoreAnswers(NamedTuple):
    """The numbers that one scrape reads from the store."""

    counts: Counts
    locked: int
    parked: Mapping[str, int]
    flows: Sequence[Flow]
    members: Sequence[LiveMember]
    memory: Sequence[tuple[int, int]]
    fair: Sequence[FairTopicNumbers]
    more: Sequence[Metric] = ()


def ask(store: DelayStore) -> StoreAnswers:
    """Ask the store for all numbers of one scrape.

    Raises:
        StoreError: the store refused, or does not answer.
    """
    counts = store.counts()
    locked, parked = OrderedKeys(store).counts(counts.topics)
    flows, live = RateLimits(store).flows(), Members(store).live()
    memory, fair = _memory_of(store.backend), fair_topics(store, counts)
    return StoreAnswers(counts, locked, parked, flows, live, memory, fair, _of_extensions(store, counts))


def _of_extensions(store: DelayStore, counts: Counts) -> list[Metric]:
    """The metrics that installed packages add for the topics of this store."""
    topics, found = set(counts.topics), list[Metric]()
    for extension in installed().extensions:
        for topic in sorted(topics & extension.metrics.keys()):
            try:
                found += list(resolve(extension.metrics[topic])(store))
            except StoreError:
                raise
            except Exception as error:  # the metrics of the core must be shown whatever a foreign module raises
                logger.warning("metrics.left_out: the metrics of %s: %r", extension.title, error)
    return found


def _memory_of(backend: Any) -> Sequence[tuple[int, int]]:
    """The used memory and the limit of each server, in bytes; () without a server, or if a server hides them."""
    memory = getattr(backend, "memory", None)  # a store in memory has no server
    if memory is None:
        return ()
    try:
        found: Sequence[tuple[int, int]] = memory()
    except StoreUnavailable:
        raise
    except WheelSchedError:  # a managed server may refuse INFO
        return ()
    return found


def of_store(answers: StoreAnswers) -> Iterator[Metric]:
    """The metrics of a store that has answered."""
    yield from _of_counts(answers.counts)
    yield from _of_keys(answers.locked, answers.parked)
    yield from _of_flows(answers.flows)
    yield from _of_members([live.member for live in answers.members])
    yield from _of_memory(answers.memory)
    yield from _of_fair_topics(answers.fair)
    yield from answers.more


def _of_counts(counts: Counts) -> Iterator[Metric]:
    messages = [((topic, state), count) for (state, topic), count in sorted(counts.now.items())]
    yield gauge("messages", "Items in the store now.", ["topic", "state"], messages)
    events = [((topic, event), count) for (event, topic), count in sorted(counts.ever.items())]
    yield counter("events", "Events of items since the namespace was first used.", ["topic", "event"], events)
    paused = [((topic,), 1) for topic in sorted(counts.paused)]
    yield gauge("topic_paused", "1 for a paused topic.", ["topic"], paused)
    head_ms, now_ms = counts.due_head_ms, counts.now_us // 1000
    overdue_s = 0.0 if head_ms is None else max(0, now_ms - head_ms) / 1000
    yield gauge("oldest_overdue_seconds", "How late the oldest due item is.", [], [((), overdue_s)])
    yield gauge("overdue_messages", "Items that are due and not released.", [], [((), counts.overdue)])
    next_due: Samples = [] if head_ms is None else [((), head_ms / 1000)]
    yield gauge("next_due_timestamp_seconds", "When the first item is due, if any.", [], next_due)


def _of_keys(locked: int, parked: Mapping[str, int]) -> Iterator[Metric]:
    yield gauge("locked_keys", "Ordering keys that wait for a failed message.", [], [((), locked)])
    samples = [((topic,), count) for topic, count in sorted(parked.items()) if count]
    yield gauge("parked_messages", "Messages parked behind their key's head.", ["topic"], samples)


def _of_flows(flows: Sequence[Flow]) -> Iterator[Metric]:
    """The metrics of rate limits and circuits by topic. There are too many destinations for a label of their own."""
    limits = [flow for flow in flows if flow.destination is None]
    opens, refused = Counter({flow.topic: 0 for flow in limits}), Counter[str]()
    for flow in flows:
        if flow.destination is not None:
            opens[flow.topic] += flow.state in ("o", "h")
            refused[flow.topic] += flow.numbers.get("refused", 0)
    held = [((flow.topic, reason), flow.numbers.get(reason, 0)) for flow in limits for reason in ("rate", "budget")] + [
        ((topic, "circuit"), refused[topic]) for topic in opens
    ]
    granted = [((flow.topic,), flow.numbers.get("granted", 0)) for flow in limits]
    spread = [((flow.topic,), flow.numbers.get("spread", 0)) for flow in limits]
    opened = [((topic,), count) for topic, count in opens.items()]
    yield counter("flow_released", "Messages that flow control released.", ["topic"], granted)
    yield counter("flow_held_back", "How often flow control delayed a message.", ["topic", "reason"], held)
    yield counter("flow_spread", "Retries that a policy's spread delayed.", ["topic"], spread)
    yield gauge("circuits_open", "Destinations whose circuit is open.", ["topic"], opened)


def _of_members(members: Sequence[Member]) -> Iterator[Metric]:
    """The metrics of live members. There are no ids and no hosts in labels: each process has new ones."""
    kinds = Counter(member.kind for member in members)
    yield gauge("members", "Live members.", ["kind"], [((kind,), count) for kind, count in sorted(kinds.items())])
    releasing = sum(member.releases for member in members)
    yield gauge("releasing_members", "Live members that release due items.", [], [((), releasing)])
    taken = Counter(topic for member in members for topic in member.takes_in)
    wanted = sorted({member.retries_to for member in members if member.retries_to})
    text = "Live services that take in a retry topic to which live consumers write failed messages."
    yield gauge("retry_topic_services", text, ["topic"], [((topic,), taken[topic]) for topic in wanted])


def _of_memory(memory: Sequence[tuple[int, int]]) -> Iterator[Metric]:
    """The memory of the fullest server. A server without a limit counts as empty."""
    if not memory:
        return
    used, limit = max(memory, key=lambda one: (one[0] / one[1] if one[1] else 0, one[0]))
    yield gauge("store_memory_used_bytes", "Used memory of the fullest server of the store.", [], [((), used)])
    limits: Samples = [((), limit)] if limit else []
    yield gauge("store_memory_limit_bytes", "The maxmemory of the fullest server, if it has one.", [], limits)


def _of_fair_topics(fair: Sequence[FairTopicNumbers]) -> Iterator[Metric]:
    """The metrics of fair topics. Only the keys with the most overdue items have a label; the others share one."""
    active = [((one.topic,), one.active) for one in fair]
    capped = [((one.topic,), len(one.at_limit)) for one in fair]
    overdue = [((one.topic, escaped(key.key)), key.waiting) for one in fair for key in one.keys]
    overdue += [((one.topic, OTHER_KEYS), one.rest) for one in fair]
    yield gauge("fair_active_keys", "Keys of a fair topic whose overdue items may be released.", ["topic"], active)
    yield gauge("fair_capped_keys", "Keys of a fair topic that wait for an item in flight.", ["topic"], capped)
    text = f"Overdue items of the ten keys that have most; {OTHER_KEYS} has the sum of all others."
    yield gauge("fair_overdue", text, ["topic", "key"], overdue)

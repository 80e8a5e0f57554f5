"""Metrics for Prometheus: a collector that reads existing counters at each scrape.

Metrics have base units; only counters end in `_total`; no label holds an id. Alert on
`wheel_sched_fire_lateness_seconds`: its healthy value is milliseconds under any load, while no count of waiting
messages is unhealthy by itself. Needs the extra `metrics`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from importlib.metadata import version
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from wheel_sched.dispatcher import DispatcherStats
from wheel_sched.dispatcher.statistics import LATENESS_BUCKETS_MS
from wheel_sched.errors import WheelSchedError
from wheel_sched.escaping import escaped, logger_of
from wheel_sched.observability.endpoint import Page, PageReply
from wheel_sched.observability.timed_query import TimedQuery
from wheel_sched.purgatory import LATENESS_BUCKETS_MS as EXPIRY_BUCKETS_MS
from wheel_sched.purgatory import Completion, Purgatory, PurgatoryStats
from wheel_sched.store import Counts, DelayStore
from wheel_sched.store.fair_shares.numbers import FairTopicNumbers, fair_topics
from wheel_sched.store.ordering import OrderedKeys
from wheel_sched.store.rate_limits import Flow, RateLimits

logger = logger_of("wheel_sched.observability")

OTHER_KEYS = "(others)"
STORE_S = 2.0  # a slower store counts as away; the page shows the other metrics

_COUNTERS = {
    "published": "Items published and settled.",
    "dead": "Items given up and kept as dead letters.",
    "held": "Items held because of the publisher's answer.",
    "failed": "Publishing attempts that failed; the item was released with backoff.",
    "in_doubt": "Items unanswered at the publish timeout: possible duplicates.",
    "stale": "Settlements refused because another dispatcher had the lease.",
    "claims": "Claims.",
    "empty_claims": "Claims that found nothing due.",
    "wake_ups": "Alarms of the wheel that went off.",
    "marks": "Wake-ups because another process scheduled an earlier item.",
    "sweeps": "Sweeps.",
    "recovered": "Items that became due again because their lease ran out.",
    "reconnects": "Reconnections to the store.",
    "store_errors": "Round trips that the store refused or did not answer.",
    "clock_jumps": "Jumps of the store's clock.",
}

_PURGATORY_GAUGES = {
    "watched": "Entries in watcher lists; an operation counts once per key.",
    "keys": "Keys with waiting operations.",
    "delayed": "Operations that wait for their timer.",
}
_PURGATORY_COUNTERS = {
    "cancelled": "Operations that were cancelled.",
    "failed": "Tries and callbacks that raised an error without a caller to receive it.",
}


class _Dispatches(Protocol):
    """A dispatcher, or a service that has one."""

    @property
    def stats(self) -> DispatcherStats: ...


class MetricsCollector(Collector):
    """Collects the metrics of dispatchers and their store.

    Args:
        dispatchers: dispatchers or services by name; the name becomes the label `dispatcher`.
        store: queried once per scrape, with four commands per shard, and one per shard for each fair topic. When it
            does not answer within two seconds, `wheel_sched_store_up` is 0. Defaults to None: no metrics of a store.
        purgatories: purgatories by name, such as a dispatcher's attribute `purgatory`; the name becomes the label
            `purgatory`. Defaults to none.

    Thread rules: any thread may call `collect`.
    """

    def __init__(
        self,
        dispatchers: Mapping[str, _Dispatches],
        store: DelayStore | None = None,
        purgatories: Mapping[str, Purgatory[Any]] | None = None,
    ) -> None:
        self._dispatchers = dict(dispatchers)
        self._store = None if store is None else TimedQuery(lambda: _ask(store), STORE_S)
        self._purgatories = dict(purgatories or {})

    def collect(self) -> Iterator[Metric]:
        samples = [((version("wheel-sched"),), 1)]
        yield _gauge("build_info", "Constant 1; the version is a label.", ["version"], samples)
        yield from self._of_dispatchers()
        if self._purgatories:
            yield from _of_purgatories({name: one.stats for name, one in self._purgatories.items()})
        if self._store is not None:
            yield from self._of_store(self._store)

    def _of_dispatchers(self) -> Iterator[Metric]:
        stats = {name: dispatcher.stats for name, dispatcher in self._dispatchers.items()}
        for field, text in _COUNTERS.items():
            yield _counter(field, text, ["dispatcher"], _field(stats, field))
        yield _gauge("in_flight", "Items claimed and not settled.", ["dispatcher"], _field(stats, "in_flight"))
        text = "From due to answered, by the store's clock."
        yield _lateness("fire_lateness_seconds", text, "dispatcher", LATENESS_BUCKETS_MS, stats)

    def _of_store(self, store: TimedQuery[_StoreAnswers]) -> Iterator[Metric]:
        text = "1 when the store answered this scrape."
        try:
            answers = store.answer()
        except (WheelSchedError, TimeoutError) as error:
            logger.info("metrics.store_away: %s", error)
            yield _gauge("store_up", text, [], [((), 0)])
            return
        yield _gauge("store_up", text, [], [((), 1)])
        yield from _of_counts(answers.counts)
        yield from _of_keys(answers.locked, answers.parked)
        yield from _of_flows(answers.flows)
        yield from _of_fair_topics(answers.fair)


_Samples = Iterable[tuple[Sequence[str], float]]  # values of the labels, and a value


def _gauge(name: str, text: str, labels: Sequence[str], samples: _Samples) -> Metric:
    return _filled(GaugeMetricFamily(f"wheel_sched_{name}", text, labels=labels), samples)


def _counter(name: str, text: str, labels: Sequence[str], samples: _Samples) -> Metric:
    return _filled(CounterMetricFamily(f"wheel_sched_{name}", text, labels=labels), samples)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, samples: _Samples) -> Metric:
    for labels, value in samples:
        family.add_metric(labels, value)
    return family


def _field(stats: Mapping[str, Any], field: str) -> _Samples:
    """The samples of one field: the field's value in each statistics object, labelled with the object's name."""
    return [((name,), getattr(one, field)) for name, one in stats.items()]


def _lateness(name: str, text: str, label: str, bounds_ms: Sequence[int], stats: Mapping[str, Any]) -> Metric:
    """A histogram of lateness in seconds. Each bucket counts the values up to its bound; the last bound is infinite."""
    family = HistogramMetricFamily(f"wheel_sched_{name}", text, labels=[label])
    bounds = [str(bound_ms / 1000) for bound_ms in bounds_ms] + ["+Inf"]
    for owner, one in stats.items():
        counts = accumulate(map(float, list(one.lateness_counts)))
        family.add_metric([owner], list(zip(bounds, counts, strict=True)), one.lateness_sum_ms / 1000)
    return family


def _of_purgatories(purgatories: Mapping[str, PurgatoryStats]) -> Iterator[Metric]:
    for field, text in _PURGATORY_GAUGES.items():
        yield _gauge(f"purgatory_{field}", text, ["purgatory"], _field(purgatories, field))
    completed = [
        ((name, reason.value), getattr(stats, reason.value))
        for name, stats in purgatories.items()
        for reason in Completion
    ]
    yield _counter("purgatory_completed", "Operations that were completed.", ["purgatory", "reason"], completed)
    for field, text in _PURGATORY_COUNTERS.items():
        yield _counter(f"purgatory_{field}", text, ["purgatory"], _field(purgatories, field))
    text = "From an operation's deadline to its expiration."
    yield _lateness("purgatory_expiration_lateness_seconds", text, "purgatory", EXPIRY_BUCKETS_MS, purgatories)


class _StoreAnswers(NamedTuple):
    """The numbers that one scrape reads from the store."""

    counts: Counts
    locked: int
    parked: Mapping[str, int]
    flows: Sequence[Flow]
    fair: Sequence[FairTopicNumbers]


def _ask(store: DelayStore) -> _StoreAnswers:
    counts = store.counts()
    locked, parked = OrderedKeys(store).counts(counts.topics)
    return _StoreAnswers(counts, locked, parked, RateLimits(store).flows(), fair_topics(store, counts))


def _of_counts(counts: Counts) -> Iterator[Metric]:
    messages = [((topic, state), count) for (state, topic), count in sorted(counts.now.items())]
    yield _gauge("messages", "Items in the store now.", ["topic", "state"], messages)
    events = [((topic, event), count) for (event, topic), count in sorted(counts.ever.items())]
    yield _counter("events", "Events of items since the beginning.", ["topic", "event"], events)
    paused = [((topic,), 1) for topic in sorted(counts.paused)]
    yield _gauge("topic_paused", "1 for a paused topic.", ["topic"], paused)
    head_ms, now_ms = counts.due_head_ms, counts.now_us // 1000
    overdue_s = 0.0 if head_ms is None else max(0, now_ms - head_ms) / 1000
    yield _gauge("oldest_overdue_seconds", "How late the first item is.", [], [((), overdue_s)])
    next_due: _Samples = [] if head_ms is None else [((), head_ms / 1000)]
    yield _gauge("next_due_timestamp_seconds", "When the first item is due, if any.", [], next_due)


def _of_keys(locked: int, parked: Mapping[str, int]) -> Iterator[Metric]:
    yield _gauge("locked_keys", "Ordering keys that wait for a failed message.", [], [((), locked)])
    samples = [((topic,), count) for topic, count in sorted(parked.items()) if count]
    yield _gauge("parked_messages", "Messages parked behind their key's head.", ["topic"], samples)


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
    yield _counter("flow_released", "Messages that flow control released.", ["topic"], granted)
    yield _counter("flow_held_back", "How often it delayed a message.", ["topic", "reason"], held)
    yield _counter("flow_spread", "Due times that a policy spread.", ["topic"], spread)
    yield _gauge("circuits_open", "Destinations whose circuit is open.", ["topic"], opened)


def _of_fair_topics(fair: Sequence[FairTopicNumbers]) -> Iterator[Metric]:
    """The metrics of fair topics. Only the keys with the most overdue items have a label; the others share one."""
    active = [((one.topic,), one.active) for one in fair]
    capped = [((one.topic,), len(one.at_limit)) for one in fair]
    overdue = [((one.topic, escaped(key.key)), key.waiting) for one in fair for key in one.keys]
    overdue += [((one.topic, OTHER_KEYS), one.rest) for one in fair]
    yield _gauge("fair_active_keys", "Keys of a fair topic that have overdue items and may go on.", ["topic"], active)
    yield _gauge("fair_capped_keys", "Keys of a fair topic that wait for an item in flight.", ["topic"], capped)
    text = f"Overdue items of the ten keys that have most; {OTHER_KEYS} has the sum of all others."
    yield _gauge("fair_overdue", text, ["topic", "key"], overdue)


def metrics_page(collector: MetricsCollector) -> Page:
    """Make the page that shows the collector's metrics. It does not use the global registry of the process."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)

    def page() -> PageReply:
        return PageReply(HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(registry))

    return page

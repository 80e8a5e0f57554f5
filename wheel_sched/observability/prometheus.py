"""Metrics for Prometheus: a collector that reads existing counters at each scrape.

Metrics have base units; only counters end in `_total`; no label holds an id. Alert on
`wheel_sched_fire_lateness_seconds`: its healthy value is milliseconds under any load, while no count of waiting
messages is unhealthy by itself. Needs the extra `metrics`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, NamedTuple, Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from wheel_sched.dispatcher import DispatcherStats
from wheel_sched.dispatcher.statistics import LATENESS_BUCKETS_MS
from wheel_sched.errors import WheelSchedError
from wheel_sched.escaping import logger_of
from wheel_sched.observability.endpoint import Page, PageReply
from wheel_sched.observability.histogram import cumulated
from wheel_sched.observability.purgatories import of_purgatories
from wheel_sched.observability.timed_query import TimedQuery
from wheel_sched.purgatory import Purgatory
from wheel_sched.store import Counts, DelayStore
from wheel_sched.store.ordering import OrderedKeys
from wheel_sched.store.rate_limits import Flow, RateLimits

logger = logger_of("wheel_sched.observability")

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


class _Dispatches(Protocol):
    """A dispatcher, or a service that has one."""

    @property
    def stats(self) -> DispatcherStats: ...


class MetricsCollector(Collector):
    """Collects the metrics of dispatchers and their store.

    Args:
        dispatchers: dispatchers or services by name; the name becomes the label `dispatcher`.
        store: queried once per scrape, with three commands per shard. When it does not answer within two seconds,
            `wheel_sched_store_up` is 0. Defaults to None: no metrics of a store.
        purgatories: purgatories by name; the name becomes the label `purgatory`. A dispatcher's own is its attribute
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
        build = GaugeMetricFamily("wheel_sched_build_info", "Constant 1; the version is a label.", labels=["version"])
        build.add_metric([version("wheel-sched")], 1)
        yield build
        yield from self._of_dispatchers()
        if self._purgatories:
            yield from of_purgatories({name: one.stats for name, one in self._purgatories.items()})
        if self._store is not None:
            yield from self._of_store(self._store)

    def _of_dispatchers(self) -> Iterator[Metric]:
        stats = {name: dispatcher.stats for name, dispatcher in self._dispatchers.items()}
        for field, text in _COUNTERS.items():
            counter = CounterMetricFamily(f"wheel_sched_{field}", text, labels=["dispatcher"])
            for name, one in stats.items():
                counter.add_metric([name], getattr(one, field))
            yield counter
        in_flight = GaugeMetricFamily("wheel_sched_in_flight", "Items claimed and not settled.", labels=["dispatcher"])
        lateness = HistogramMetricFamily(
            "wheel_sched_fire_lateness_seconds",
            "From due to answered, by the store's clock.",
            labels=["dispatcher"],
        )
        for name, one in stats.items():
            in_flight.add_metric([name], one.in_flight)
            lateness.add_metric([name], cumulated(LATENESS_BUCKETS_MS, one.lateness_counts), one.lateness_sum_ms / 1000)
        yield in_flight
        yield lateness

    def _of_store(self, store: TimedQuery[_StoreAnswers]) -> Iterator[Metric]:
        up = GaugeMetricFamily("wheel_sched_store_up", "1 when the store answered this scrape.")
        try:
            answers = store.answer()
        except (WheelSchedError, TimeoutError) as error:
            logger.info("metrics.store_away: %s", error)
            up.add_metric([], 0)
            yield up
            return
        up.add_metric([], 1)
        yield up
        yield from _of_counts(answers.counts)
        yield from _of_keys(answers.locked, answers.parked)
        yield from _of_flows(answers.flows)


class _StoreAnswers(NamedTuple):
    """The answers of the store."""

    counts: Counts
    locked: int
    parked: Mapping[str, int]
    flows: Sequence[Flow]


def _ask(store: DelayStore) -> _StoreAnswers:
    counts = store.counts()
    locked, parked = OrderedKeys(store).counts(counts.topics)
    return _StoreAnswers(counts, locked, parked, RateLimits(store).flows())


def _of_counts(counts: Counts) -> Iterator[Metric]:
    messages = GaugeMetricFamily("wheel_sched_messages", "Items in the store now.", labels=["topic", "state"])
    for (state, topic), count in sorted(counts.now.items()):
        messages.add_metric([topic, state], count)
    yield messages
    events = CounterMetricFamily(
        "wheel_sched_events", "Events of items since the beginning.", labels=["topic", "event"]
    )
    for (event, topic), count in sorted(counts.ever.items()):
        events.add_metric([topic, event], count)
    yield events
    paused = GaugeMetricFamily("wheel_sched_topic_paused", "1 for a paused topic.", labels=["topic"])
    for topic in sorted(counts.paused):
        paused.add_metric([topic], 1)
    yield paused
    head_ms, now_ms = counts.due_head_ms, counts.now_us // 1000
    overdue_s = 0.0 if head_ms is None else max(0, now_ms - head_ms) / 1000
    yield GaugeMetricFamily("wheel_sched_oldest_overdue_seconds", "How late the first item is.", value=overdue_s)
    next_due = GaugeMetricFamily("wheel_sched_next_due_timestamp_seconds", "When the first item is due, if any.")
    if head_ms is not None:
        next_due.add_metric([], head_ms / 1000)
    yield next_due


def _of_keys(locked: int, parked: Mapping[str, int]) -> Iterator[Metric]:
    yield GaugeMetricFamily("wheel_sched_locked_keys", "Ordering keys that wait for a failed message.", value=locked)
    lines = GaugeMetricFamily(
        "wheel_sched_parked_messages", "Messages parked behind their key's head.", labels=["topic"]
    )
    for topic, count in sorted(parked.items()):
        if count:
            lines.add_metric([topic], count)
    yield lines


def _of_flows(flows: Sequence[Flow]) -> Iterator[Metric]:
    """The metrics of rate limits and circuits by topic. Destinations are too many to be labels."""
    released = CounterMetricFamily(
        "wheel_sched_flow_released", "Messages that flow control released.", labels=["topic"]
    )
    held = CounterMetricFamily(
        "wheel_sched_flow_held_back", "How often it delayed a message.", labels=["topic", "reason"]
    )
    spread = CounterMetricFamily("wheel_sched_flow_spread", "Due times that a policy spread.", labels=["topic"])
    opened = GaugeMetricFamily("wheel_sched_circuits_open", "Destinations whose circuit is open.", labels=["topic"])
    opens, refused = Counter[str](), Counter[str]()
    for flow in flows:
        if flow.destination is None:
            released.add_metric([flow.topic], flow.numbers.get("granted", 0))
            for reason in ("rate", "budget"):
                held.add_metric([flow.topic, reason], flow.numbers.get(reason, 0))
            spread.add_metric([flow.topic], flow.numbers.get("spread", 0))
            opens[flow.topic] += 0
        else:
            opens[flow.topic] += flow.state in ("o", "h")
            refused[flow.topic] += flow.numbers.get("refused", 0)
    for topic in opens:
        opened.add_metric([topic], opens[topic])
        held.add_metric([topic, "circuit"], refused[topic])
    yield released
    yield held
    yield spread
    yield opened


def metrics_page(collector: MetricsCollector) -> Page:
    """Make the page of these metrics. The global registry of the process is not touched."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)

    def page() -> PageReply:
        return PageReply(HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(registry))

    return page

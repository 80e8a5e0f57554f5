"""Metrics for Prometheus: a collector that reads existing counters at each scrape.

Values are in base units, such as seconds and bytes. Only names of counters end in `_total`. No label holds an id.
Alert on `wheel_sched_fire_lateness_seconds`: a dispatcher that keeps up is late by milliseconds. Do not alert on the
number of waiting messages: a high number alone is no fault. This module needs the extra `metrics`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from wheel_sched.dispatcher import DispatcherStats
from wheel_sched.dispatcher.statistics import LATENESS_BUCKETS_MS
from wheel_sched.errors import WheelSchedError
from wheel_sched.escaping import logger_of
from wheel_sched.observability.endpoint import Page, PageReply
from wheel_sched.observability.families import Metric, counter, gauge, lateness, samples_of
from wheel_sched.observability.store_metrics import StoreAnswers, ask, of_store
from wheel_sched.observability.timed_query import TimedQuery
from wheel_sched.purgatory import LATENESS_BUCKETS_MS as EXPIRY_BUCKETS_MS
from wheel_sched.purgatory import Completion, Purgatory, PurgatoryStats
from wheel_sched.store import DelayStore

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

_PURGATORY_GAUGES = {
    "watched": "Entries in watcher lists; an operation counts once per key.",
    "keys": "Keys with waiting operations.",
    "delayed": "Operations that wait for their timer.",
}
_PURGATORY_COUNTERS = {
    "cancelled": "Operations that were cancelled.",
    "failed": "Errors of tries and callbacks that no caller received.",
}


class _Dispatches(Protocol):
    """A dispatcher, or a service that has one."""

    @property
    def stats(self) -> DispatcherStats: ...


class MetricsCollector(Collector):
    """Collects the metrics of dispatchers and their store.

    Args:
        dispatchers: dispatchers or services by name; the name becomes the label `dispatcher`.
        store: the delay store. A scrape costs two commands, four for each shard, and one for each shard of each fair
            topic; metrics of extensions cost more. If the store does not answer within two seconds,
            `wheel_sched_store_up` is 0. Defaults to None: no metrics of a store.
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
        self._store = None if store is None else TimedQuery(lambda: ask(store), STORE_S)
        self._purgatories = dict(purgatories or {})

    def collect(self) -> Iterator[Metric]:
        samples = [((version("wheel-sched"),), 1)]
        yield gauge("build_info", "Constant 1; the version is a label.", ["version"], samples)
        yield from self._of_dispatchers()
        if self._purgatories:
            yield from _of_purgatories({name: one.stats for name, one in self._purgatories.items()})
        if self._store is not None:
            yield from self._of_store(self._store)

    def _of_dispatchers(self) -> Iterator[Metric]:
        stats = {name: dispatcher.stats for name, dispatcher in self._dispatchers.items()}
        for field, text in _COUNTERS.items():
            yield counter(field, text, ["dispatcher"], samples_of(stats, field))
        yield gauge("in_flight", "Items claimed and not settled.", ["dispatcher"], samples_of(stats, "in_flight"))
        text = "From an item's due time until the store has settled it, by the store's clock."
        yield lateness("fire_lateness_seconds", text, "dispatcher", LATENESS_BUCKETS_MS, stats)

    def _of_store(self, store: TimedQuery[StoreAnswers]) -> Iterator[Metric]:
        text = "1 when the store answered this scrape."
        try:
            answers = store.answer()
        except (WheelSchedError, TimeoutError) as error:
            logger.info("metrics.store_away: %s", error)
            yield gauge("store_up", text, [], [((), 0)])
            return
        yield gauge("store_up", text, [], [((), 1)])
        yield from of_store(answers)


def _of_purgatories(purgatories: Mapping[str, PurgatoryStats]) -> Iterator[Metric]:
    for field, text in _PURGATORY_GAUGES.items():
        yield gauge(f"purgatory_{field}", text, ["purgatory"], samples_of(purgatories, field))
    completed = [
        ((name, reason.value), getattr(stats, reason.value))
        for name, stats in purgatories.items()
        for reason in Completion
    ]
    yield counter("purgatory_completed", "Operations that were completed.", ["purgatory", "reason"], completed)
    for field, text in _PURGATORY_COUNTERS.items():
        yield counter(f"purgatory_{field}", text, ["purgatory"], samples_of(purgatories, field))
    text = "From an operation's deadline to its expiration."
    yield lateness("purgatory_expiration_lateness_seconds", text, "purgatory", EXPIRY_BUCKETS_MS, purgatories)


def metrics_page(collector: MetricsCollector) -> Page:
    """Make the page that shows the collector's metrics. It does not use the global registry of the process."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)

    def page() -> PageReply:
        return PageReply(HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(registry))

    return page

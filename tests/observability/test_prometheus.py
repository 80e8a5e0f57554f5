"""The metrics of real dispatchers and stores, read as Prometheus reads them."""

from __future__ import annotations

import time
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from wheel_sched.dispatcher import Batch, Dispatcher, DispatcherStats
from wheel_sched.errors import StoreUnavailable
from wheel_sched.observability.prometheus import MetricsCollector, metrics_page
from wheel_sched.store import Done, Item, open_store
from wheel_sched.store.flow_control import FlowControl
from wheel_sched.store.key_gates import KeyGates, gate_of, ref_of, scope_of
from wheel_sched.store.operations.flow import Limits
from wheel_sched.store.operations.ordering import Owner

PATIENCE_S = 30


class Scrape:
    """Samples of one page by name and labels."""

    def __init__(self, collector: MetricsCollector) -> None:
        reply = metrics_page(collector)()
        assert reply.status == 200
        self.samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(reply.body.decode())
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float:
        return self.samples[f"wheel_sched_{name}", frozenset(labels.items())]

    def names(self) -> set[str]:
        return {name for name, _ in self.samples}


class Publisher:
    """Says done to everything."""

    def publish(self, batch: Batch) -> None:
        batch.answers[:] = [Done(item.id) for item in batch.items]

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def test_what_happened_is_told_as_counters_and_a_histogram() -> None:
    """Five published, one waiting for an hour; the buckets are cumulative and end with all of them."""
    with open_store("memory:") as store, Dispatcher(store, Publisher()) as dispatcher:
        now_ms = store.now_ms()
        store.schedule([Item(f"m{n}", now_ms, b"x", "orders") for n in range(5)])
        store.schedule([Item("later", now_ms + 3_600_000, b"x", "orders")])
        until_s = time.monotonic() + PATIENCE_S
        while dispatcher.stats.published < 5 or dispatcher.stats.in_flight:
            assert time.monotonic() < until_s
            time.sleep(0.005)  # until the settlements are counted
        scrape = Scrape(MetricsCollector({"orders": dispatcher}, store))
    assert scrape("published_total", dispatcher="orders") == 5
    assert scrape("in_flight", dispatcher="orders") == 0
    assert scrape("fire_lateness_seconds_count", dispatcher="orders") == 5
    assert scrape("fire_lateness_seconds_bucket", dispatcher="orders", le="+Inf") == 5
    assert scrape("messages", topic="orders", state="due") == 1
    assert scrape("events_total", topic="orders", event="completed") == 5
    assert scrape("store_up") == 1
    assert scrape("oldest_overdue_seconds") == 0
    assert scrape("next_due_timestamp_seconds") == (now_ms + 3_600_000) / 1000


def test_buckets_and_sum_are_in_seconds() -> None:
    """2 ms twice and 40 s once."""

    class Told:
        stats = DispatcherStats()

    Told.stats.late(50_000, [49_998, 49_998, 10_000])
    scrape = Scrape(MetricsCollector({"d": Told()}))
    counts = {
        dict(labels)["le"]: value
        for (name, labels), value in scrape.samples.items()
        if name == "wheel_sched_fire_lateness_seconds_bucket"
    }
    assert (counts["0.001"], counts["0.002"], counts["30.0"], counts["60.0"], counts["+Inf"]) == (0, 2, 2, 3, 3)
    assert scrape("fire_lateness_seconds_sum", dispatcher="d") == 40.004


def test_an_absent_store_leaves_the_rest_of_the_page() -> None:
    """Its own gauge says so; what is known here is told all the same."""

    class Away:
        def counts(self) -> None:
            raise StoreUnavailable("away")

    class Told:
        stats = DispatcherStats(published=3)

    scrape = Scrape(MetricsCollector({"d": Told()}, Away()))  # type: ignore[arg-type]
    assert scrape("store_up") == 0
    assert scrape("published_total", dispatcher="d") == 3
    assert "wheel_sched_messages" not in scrape.names()


def test_a_dispatcher_says_how_it_is() -> None:
    """Not begun: neither live nor ready; running: both; stopped: neither."""
    with open_store("memory:") as store:
        dispatcher = Dispatcher(store, Publisher())
        assert (dispatcher.turn_s, dispatcher.ready) == (None, False)
        dispatcher.start()
        until_s = time.monotonic() + PATIENCE_S
        while not dispatcher.ready:
            assert time.monotonic() < until_s
            time.sleep(0.005)  # until the window has been read
        turn_s = dispatcher.turn_s
        assert turn_s is not None
        assert turn_s < PATIENCE_S
        dispatcher.stop()
        assert (dispatcher.turn_s, dispatcher.ready) == (None, False)


def test_closed_keys_and_flow_control_are_told_by_topic() -> None:
    """Destinations are no labels: they are counted."""
    with open_store("memory:") as store:
        gates, scope = KeyGates(store), scope_of("g", "t")
        gate = gate_of(scope, b"k")
        owner = Owner(scope, "me", gates.own(scope, "me", 60_000).epoch)
        gates.close(owner, [(gate, "a", "k")])
        gates.park(owner, 10, [(gate, "b", Item("b.0", None, b"", "t", (ref_of(gate),), scope))])
        control = FlowControl(store)
        limits = Limits(interval_us=10_000_000, burst=1, trip_ppm=500_000, of=2, within_ms=60_000, open_ms=60_000)
        control.admit("g/t", limits, [("one", 3)])
        control.report("g/t", [("one", 0, 0, 5), ("two", 0, 5, 0)])
        control.admit("g/t", limits, [("one", 2)])
        scrape = Scrape(MetricsCollector({}, store))
    assert scrape("closed_keys") == 1
    assert scrape("parked_messages", topic="t") == 1
    assert scrape("flow_released_total", topic="g/t") == 1
    assert scrape("flow_held_back_total", topic="g/t", reason="rate") == 2
    assert scrape("flow_held_back_total", topic="g/t", reason="circuit") == 2
    assert scrape("circuits_open", topic="g/t") == 1

"""The metrics of real dispatchers and stores, parsed by the Prometheus client."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from wheel_sched.dispatcher import Batch, Dispatcher, DispatcherStats, PublisherTraits
from wheel_sched.errors import StoreUnavailable
from wheel_sched.observability.prometheus import MetricsCollector, metrics_page
from wheel_sched.purgatory import DelayedOperation, Purgatory
from wheel_sched.store import Done, Item, open_store
from wheel_sched.store.core.call import Call
from wheel_sched.store.fair_shares import FairSettings, FairShares, PrepareDue, fair_ref
from wheel_sched.store.once_per_key import collapse_ref, debounce_ref
from wheel_sched.store.ordering import OrderedKeys, Owner, lock_of, ref_of, scope_of
from wheel_sched.store.rate_limits import Limits, RateLimits
from wheel_sched.testing import VirtualClock
from wheel_sched.wheel import TimingWheel

PATIENCE_S = 30
REASONS = ("satisfied", "forced", "expired")


class Scrape:
    """The samples of one metrics page, by name and labels."""

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
    """A publisher that answers `Done` for every item."""

    traits = PublisherTraits()

    def publish(self, batch: Batch) -> None:
        batch.answers[:] = [Done(item.id) for item in batch.items]

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def test_a_store_that_hangs_holds_up_no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the store does not answer, each page is still served soon and shows the store as down. All pages together
    start one query of the store."""
    monkeypatch.setattr("wheel_sched.observability.prometheus.STORE_S", 0.05)
    going_on, asked = threading.Event(), []
    with open_store("memory:") as store, Dispatcher(store, Publisher()) as dispatcher:
        counts = store.counts

        def hanging() -> Any:
            asked.append(1)
            going_on.wait(20)
            return counts()

        monkeypatch.setattr(store, "counts", hanging)
        collector = MetricsCollector({"d": dispatcher}, store)
        began_s = time.monotonic()
        for _ in range(3):
            scrape = Scrape(collector)
            assert scrape("store_up") == 0
            assert scrape("published_total", dispatcher="d") == 0
        assert time.monotonic() - began_s < 10
        assert len(asked) == 1
        going_on.set()
        deadline_s = time.monotonic() + PATIENCE_S
        while Scrape(collector)("store_up") == 0:
            assert time.monotonic() < deadline_s


def test_events_are_counters_and_a_histogram() -> None:
    """Of six items, five are published and one is due in an hour. The counters and the histogram count the five."""
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
    """Two items are 2 ms late and one is 40 s late. The buckets and the sum of the histogram are in seconds."""

    class Counting:
        stats = DispatcherStats()

    Counting.stats.late(50_000, [49_998, 49_998, 10_000])
    scrape = Scrape(MetricsCollector({"d": Counting()}))
    counts = {
        dict(labels)["le"]: value
        for (name, labels), value in scrape.samples.items()
        if name == "wheel_sched_fire_lateness_seconds_bucket"
    }
    assert (counts["0.001"], counts["0.002"], counts["30.0"], counts["60.0"], counts["+Inf"]) == (0, 2, 2, 3, 3)
    assert scrape("fire_lateness_seconds_sum", dispatcher="d") == 40.004


def test_the_metrics_of_purgatories() -> None:
    """Each way in which an operation ends has its own counter. The lateness of expired operations is in seconds."""
    clock = VirtualClock()
    wheel: TimingWheel[Any] = TimingWheel(0)

    class ByHand:
        def schedule(self, delay_ms: int, callback: Any) -> Any:
            return wheel.schedule(callback, clock.monotonic_ms() + delay_ms)

    class Operation(DelayedOperation):
        ready = False

        def try_complete(self) -> bool:
            return self.ready

        def on_complete(self) -> None: ...

    def fails() -> bool:
        raise ValueError("a mistake")

    with Purgatory[str](ByHand(), clock=clock, on_error=lambda *_: None) as purgatory:
        satisfied, forced, expired, cancelled, failing, waiting = (Operation(40) for _ in range(6))
        for name, operation in {"s": satisfied, "f": forced, "e": expired, "c": cancelled, "x": failing}.items():
            purgatory.try_complete_else_watch(operation, [name])
        satisfied.ready = True
        purgatory.check_and_complete("s")
        forced.force_complete()
        purgatory.cancel_for_key("c")
        failing.try_complete = fails  # type: ignore[method-assign]
        purgatory.check_and_complete("x")
        failing.try_complete = lambda: False  # type: ignore[method-assign]
        clock.advance(43)
        for entry in wheel.advance(43):
            assert entry.task is not None
            entry.task()
        purgatory.try_complete_else_watch(waiting, ["w", "w2"])
        scrape = Scrape(MetricsCollector({}, purgatories={"mine": purgatory}))
    labels = {"purgatory": "mine"}
    assert [scrape(f"purgatory_{name}", **labels) for name in ("watched", "keys", "delayed")] == [2, 2, 1]
    reasons = {reason: scrape("purgatory_completed_total", reason=reason, **labels) for reason in REASONS}
    assert reasons == {"satisfied": 1, "forced": 1, "expired": 2}
    assert scrape("purgatory_cancelled_total", **labels) == scrape("purgatory_failed_total", **labels) == 1
    lateness = "purgatory_expiration_lateness_seconds"
    buckets = [scrape(f"{lateness}_bucket", le=bound, **labels) for bound in ("0.002", "0.005", "+Inf")]
    assert (buckets, scrape(f"{lateness}_count", **labels)) == ([0, 2, 2], 2)
    assert scrape(f"{lateness}_sum", **labels) == pytest.approx(0.006)


def test_the_metrics_of_the_purgatory_of_a_dispatcher() -> None:
    """Each batch of a dispatcher is an operation in its purgatory. After three batches the metrics show three
    completed operations and none expired."""
    with open_store("memory:") as store, Dispatcher(store, Publisher()) as dispatcher:
        for n in range(3):
            store.schedule([Item(f"m{n}", store.now_ms(), b"x", "orders")])
            until_s = time.monotonic() + PATIENCE_S
            while dispatcher.stats.published <= n or dispatcher.stats.in_flight:
                assert time.monotonic() < until_s
                time.sleep(0.005)  # until the settlement is counted
        scrape = Scrape(MetricsCollector({}, purgatories={"orders": dispatcher.purgatory}))
    reasons = [scrape("purgatory_completed_total", purgatory="orders", reason=reason) for reason in REASONS]
    assert (sum(reasons), reasons[2]) == (3, 0)


def test_an_absent_store_leaves_the_rest_of_the_page() -> None:
    """If the store does not answer, `store_up` is 0, and the metrics of this process are still there."""

    class Away:
        def counts(self) -> None:
            raise StoreUnavailable("away")

    class Counting:
        stats = DispatcherStats(published=3)

    scrape = Scrape(MetricsCollector({"d": Counting()}, Away()))  # type: ignore[arg-type]
    assert scrape("store_up") == 0
    assert scrape("published_total", dispatcher="d") == 3
    assert "wheel_sched_messages" not in scrape.names()


def test_a_dispatcher_says_how_it_is() -> None:
    """A dispatcher is live and ready only between `start` and `stop`."""
    with open_store("memory:") as store:
        dispatcher = Dispatcher(store, Publisher())
        assert (dispatcher.problems(), dispatcher.ready) == (["its thread has ended"], False)
        dispatcher.start()
        until_s = time.monotonic() + PATIENCE_S
        while not dispatcher.ready:
            assert time.monotonic() < until_s
            time.sleep(0.005)  # until the window has been read
        assert dispatcher.problems() == []
        dispatcher.stop()
        assert (dispatcher.problems(), dispatcher.ready) == (["its thread has ended"], False)


def test_locked_keys_and_flow_control_have_metrics_by_topic() -> None:
    """Metrics of ordered keys and of flow control have topics as labels. Keys and destinations are counted, not
    named."""
    with open_store("memory:") as store:
        gates, scope = OrderedKeys(store), scope_of("g", "t")
        gate = lock_of(scope, b"k")
        owner = Owner(scope, "me", gates.acquire(scope, "me", 60_000).epoch)
        gates.close(owner, [(gate, "a", True, "k")])
        gates.park(owner, 10, [(gate, "b", True, Item("b.0", None, b"", "t", (ref_of(gate),), scope))])
        control = RateLimits(store)
        limits = Limits(interval_us=10_000_000, burst=1, trip_ppm=500_000, of=2, within_ms=60_000, open_ms=60_000)
        control.admit("g/t", limits, [("one", 3)])
        control.report("g/t", [("one", 0, 0, 5), ("two", 0, 5, 0)])
        control.admit("g/t", limits, [("one", 2)])
        control.spread("g/t", 7)
        scrape = Scrape(MetricsCollector({}, store))
    assert scrape("locked_keys") == 1
    assert scrape("parked_messages", topic="t") == 1
    assert scrape("flow_released_total", topic="g/t") == 1
    assert scrape("flow_spread_total", topic="g/t") == 7
    assert scrape("flow_held_back_total", topic="g/t", reason="rate") == 2
    assert scrape("flow_held_back_total", topic="g/t", reason="circuit") == 2
    assert scrape("circuits_open", topic="g/t") == 1


def test_superseded_items_are_events_of_their_topic() -> None:
    """Items that collapse drops or debounce replaces are counted by topic. No label names a key."""
    with open_store("memory:") as store:
        due_ms = store.now_ms() + 3_600_000
        for ref, topic, count in ((collapse_ref("secret"), "orders", 4), (debounce_ref("secret"), "mails", 3)):
            for number in range(count):
                store.schedule([Item(f"{topic}{number}", due_ms, b"x", topic, (ref,))])
        scrape = Scrape(MetricsCollector({}, store))
    assert scrape("events_total", topic="orders", event="dropped") == 3
    assert scrape("events_total", topic="mails", event="replaced") == 2
    assert not [labels for _, labels in scrape.samples if "secret" in str(labels)]


def test_only_the_keys_that_are_furthest_behind_have_a_label() -> None:
    """Ten keys of a fair topic have a series each, and the others share one, however many keys there are."""
    with open_store("memory:") as store:
        FairShares(store).configure("t", FairSettings())
        now_ms = store.now_ms()
        for number in range(30):
            key = (fair_ref(f"k{number:02}\n"),)
            store.schedule([Item(f"{number}.{n}", now_ms - 1000, b"", "t", key) for n in range(number + 1)])
        for _ in range(5):
            store.execute([Call(0, PrepareDue())])  # as dispatchers do: look for overdue items
        scrape = Scrape(MetricsCollector({}, store))
        series = [dict(labels)["key"] for name, labels in scrape.samples if name == "wheel_sched_fair_overdue"]
        assert (len(series), len({*series})) == (11, 11)
        overdue = [scrape("fair_overdue", topic="t", key=key) for key in series]
        assert scrape("fair_overdue", topic="t", key="(others)") == sum(range(1, 21))
        assert sum(overdue) == sum(range(1, 31))
        assert scrape("fair_capped_keys", topic="t") == 0
        assert scrape("fair_active_keys", topic="t") == 30

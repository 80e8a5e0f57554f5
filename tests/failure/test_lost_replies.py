"""A dispatcher calls its store through a proxy that loses replies and connections.

These tests lose the reply of one call of each kind only, because the simulator loses the reply of any call and checks
that no message is lost or doubled (docs/simulator.md). The simulator has no server push, so these tests also push.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from tests.servers.faulty_proxy import FaultyProxy
from wheel_sched.dispatcher import Batch, Dispatcher, DispatcherConfig, PublisherTraits, PushTarget
from wheel_sched.store.connect import open_store
from wheel_sched.store.core.claim import Claimed
from wheel_sched.store.core.delay_store import DelayStore
from wheel_sched.store.core.items import Item
from wheel_sched.store.core.settle import Dead, Done
from wheel_sched.store.redis.backend import RedisBackend, client_for
from wheel_sched.store.redis.round_trips import Dialect

if TYPE_CHECKING:
    from conftest import Stage

pytestmark = [pytest.mark.proof, pytest.mark.real, pytest.mark.slow]

MESSAGES, BATCH = 300, 50
CONFIG = DispatcherConfig(batch=BATCH, lease_ms=3_000, sweep_ms=2_000)
ONE, TOO_MANY = 1, 4  # how many replies are lost in a row; after TOO_MANY lost replies a call fails


class Receiver:
    """A publisher that writes to the stream `out` of the receiving server, over a connection without the proxy."""

    def __init__(self, stage: Stage, instant: bool) -> None:
        self.traits = PublisherTraits(never_waits=instant)
        self._client = stage.client

    def publish(self, batch: Batch) -> None:
        for place, item in enumerate(batch.items):
            self._client.xadd("out", {"id": item.id, "due": item.due_ms, "by": "d"})
            batch.answers[place] = Done(item.id)

    def refuse(self, item: Claimed, reason: str) -> Dead:
        return Dead(item.id, reason)


@pytest.fixture
def proxy(stage: Stage) -> Iterator[FaultyProxy]:
    with FaultyProxy(stage.server.url) as proxy:
        yield proxy


@pytest.fixture
def run(stage: Stage, proxy: FaultyProxy) -> Iterator[Callable[..., Dispatcher]]:
    """Return a function that starts a dispatcher. All connections of the dispatcher to the store use the proxy."""
    with ExitStack() as stack:

        def start(*, push: bool = False, instant: bool = False) -> Dispatcher:
            store = stack.enter_context(open_store(proxy.url))
            target = PushTarget(create=True) if push else None
            return stack.enter_context(Dispatcher(store, Receiver(stage, instant), push=target, config=CONFIG))

        yield start


@pytest.mark.parametrize(
    ("script", "instant", "times"),
    [("claim", True, ONE), ("settle", False, TOO_MANY), ("publish", False, ONE), ("publish", False, TOO_MANY)],
)
def test_a_dispatchers_lost_reply_loses_and_doubles_nothing(
    stage: Stage, proxy: FaultyProxy, run: Callable[..., Dispatcher], script: str, instant: bool, times: int
) -> None:
    """The server executes a call, and its reply is lost. The dispatcher repeats the call with the same token and
    gets the same answer."""
    push = script == "publish"
    for _ in range(times):
        proxy.drop_next_reply(b"_" + script.encode())
    dispatcher = run(push=push, instant=instant)
    ids = stage.schedule(MESSAGES, in_ms=100, push=push)
    stage.wait_drained()
    stage.judged(ids, most_duplicates=0)
    assert proxy.counts.dropped_replies == times
    assert (dispatcher.stats.stale, dispatcher.stats.in_doubt) == (0, 0)
    assert (dispatcher.stats.store_errors > 0) == (times == TOO_MANY)
    assert stage.counts().happened("completed") == MESSAGES


def test_replies_lost_again_and_again_lose_and_double_nothing(
    stage: Stage, proxy: FaultyProxy, run: Callable[..., Dispatcher]
) -> None:
    """Ten replies are lost while 300 messages become due one after the other. No message is lost or doubled."""
    run()
    now_ms = stage.counts().now_us // 1000
    items = [Item(f"m{n}", now_ms + 100 + 5 * n, b"", "out") for n in range(MESSAGES)]
    stage.store.schedule(items)
    for n in range(1, 11):
        proxy.drop_next_reply(b"_settle")
        wait(lambda n=n: proxy.counts.dropped_replies == n)  # type: ignore[misc]  # mypy can't type a default here
    stage.wait_drained()
    stage.judged([item.id for item in items], most_duplicates=0)


def test_a_producers_lost_reply_stores_nothing_twice(stage: Stage, proxy: FaultyProxy) -> None:
    """The reply to a producer's `schedule` is lost, and the client repeats the call with the same token.

    It gets the first answer, although a dispatcher has delivered messages meanwhile.
    """
    config = {"batch": BATCH, "lease_ms": 30_000}
    stage.start(config=config).wait_ready()
    items = [Item(f"m{n}", 0, b"", "out") for n in range(MESSAGES)]
    with open_store(proxy.url) as producer:
        proxy.drop_next_reply(b"_schedule")
        stored = producer.schedule(items)
    assert (stored.accepted, proxy.counts.dropped_replies) == (MESSAGES, 1)
    stage.wait_drained()
    stage.judged([item.id for item in items], most_duplicates=0)
    assert stage.counts().happened("accepted") == MESSAGES


def test_connections_that_are_cut_all_the_time_lose_and_double_nothing(
    stage: Stage, proxy: FaultyProxy, run: Callable[..., Dispatcher]
) -> None:
    """All connections are cut again and again, also the one on which the dispatcher waits for markers of new items. No
    message is lost or doubled."""
    dispatcher = run()
    ids = stage.schedule(MESSAGES, in_ms=200)
    for _ in range(20):
        proxy.cut()
        time.sleep(0.03)  # some calls succeed between two cuts
    stage.wait_drained()
    stage.judged(ids, most_duplicates=0)
    assert dispatcher.stats.stale == 0


class HalfDeaf(RedisBackend):
    """A backend that makes its calls directly to the server, and its blocking read through the proxy."""

    def __init__(self, direct: str, through: str, namespace: str) -> None:
        super().__init__(client_for(direct), Dialect(namespace), owns_client=True)
        self._listening = RedisBackend(client_for(through), Dialect(namespace), owns_client=True)

    def waiter(self, shard: int, timeout_ms: int) -> Any:
        return self._listening.waiter(shard, timeout_ms)

    def close(self) -> None:
        super().close()
        self._listening.close()


def test_a_dead_listener_delays_a_new_item_and_does_not_lose_it(stage: Stage, proxy: FaultyProxy) -> None:
    """The listener is the thread that reads markers of new items. Its connection dies, and it gets no error.

    If another item waits in the store, the dispatcher finds a new item with its next sweep. If the store was empty, the
    dispatcher does not sweep. It finds the new item when the listener's read ends: after a sweep interval and 10 s.
    """
    sweep_ms, read_ends_ms = 500, 10_500
    config = DispatcherConfig(sweep_ms=sweep_ms)
    with ExitStack() as stack:
        stores, dispatchers = [], []
        for namespace in ("waiting", "empty"):
            store = DelayStore(HalfDeaf(stage.server.url, proxy.url, namespace)).open()
            stack.callback(store.close)
            stores.append(store)
            dispatchers.append(stack.enter_context(Dispatcher(store, Receiver(stage, False), config=config)))
        now_ms = stores[0].counts().now_us // 1000
        stores[0].schedule([Item("in an hour", now_ms + 3_600_000, b"")])
        for store, dispatcher in zip(stores, dispatchers, strict=True):
            store.schedule([Item("heard", 0, b"")])
            wait(lambda dispatcher=dispatcher: dispatcher.stats.published == 1)  # type: ignore[misc]  # as above
        marks = [dispatcher.stats.marks for dispatcher in dispatchers]
        assert min(marks) >= 1

        proxy.blackhole()
        now_ms = stores[0].counts().now_us // 1000
        for store in stores:
            store.schedule([Item("unheard", now_ms, b"")])
        wait(lambda: all(dispatcher.stats.published == 2 for dispatcher in dispatchers))
        assert [dispatcher.stats.marks for dispatcher in dispatchers] == marks, "the listener got a marker"
        late_ms = [arrival.at_ms - now_ms for arrival in stage.arrivals()[-2:]]
        stage.record("lateness in ms with another item in the store, and with none", late_ms)
        assert late_ms[0] < read_ends_ms  # the sweep interval is half a second; the rest is for a busy machine
        assert late_ms[1] <= read_ends_ms + 20_000

        proxy.heal()
        for store in stores:
            store.schedule([Item("heard again", 0, b"")])
        wait(lambda: all(dispatcher.stats.published == 3 for dispatcher in dispatchers))


def wait(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until_s, "waited in vain"
        time.sleep(0.002)  # the dispatchers run in real time

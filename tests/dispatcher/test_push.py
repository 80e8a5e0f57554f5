"""Server push on a real server: what the server's script pushes, and how items that it cannot push are settled."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from wheel_sched.dispatcher import Answer, Batch, Dispatcher, DispatcherConfig, Failed, PublisherTraits, PushTarget
from wheel_sched.store.connect import open_store
from wheel_sched.store.core.claim import Claimed
from wheel_sched.store.core.delay_store import DelayStore
from wheel_sched.store.core.items import Item
from wheel_sched.store.core.settle import Dead, Done, Held, Next
from wheel_sched.store.push.push_form import encode_push
from wheel_sched.store.recurring import Recur

if TYPE_CHECKING:
    import redis


class Refusals:
    """A publisher that only decides what happens to items that the server refused to push."""

    traits = PublisherTraits()

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.answer: Callable[[Claimed], Answer | None] = lambda item: Dead(item.id, "nowhere to go")
        self.published: Callable[[Claimed], Answer] | None = None

    def publish(self, batch: Batch) -> None:
        assert self.published is not None, "the server pushes; nothing is to be published here"
        for place, item in enumerate(batch.items):
            batch.answers[place] = self.published(item)

    def refuse(self, item: Claimed, reason: str) -> Answer | None:
        self.asked.append((item.id, reason))
        return self.answer(item)


class Bench:
    """The store, the publisher and the dispatchers of one test."""

    def __init__(self, store: DelayStore, stack: ExitStack) -> None:
        self.store = store
        self.publisher = Refusals()
        self._stack = stack

    def start(self, push: PushTarget | None = None, **settings: int) -> Dispatcher:
        config = DispatcherConfig(backoff_ms=20, **settings)
        return self._stack.enter_context(
            Dispatcher(self.store, self.publisher, push=push or PushTarget(), config=config)
        )

    def stream(self, item_id: str, target: str = "out", due_ms: int = 0) -> Item:
        body = encode_push("S", target, [b"id", item_id.encode(), b"due", b"%d" % due_ms])
        return Item(item_id, due_ms, body, topic=target)

    def until(self, condition: Callable[[], bool]) -> None:
        until_s = time.monotonic() + 40
        while not condition():
            assert time.monotonic() < until_s, f"waited in vain; refused: {self.publisher.asked}"
            time.sleep(0.002)  # the dispatcher makes it true, in real time

    def reason(self, item_id: str, state: str = "dead") -> str:
        self.until(lambda: (found := self.store.get([item_id])[0]) is not None and found.state == state)
        (found,) = self.store.get([item_id])
        assert found is not None
        return found.reason


@pytest.fixture
def bench(redis_url: str) -> Iterator[Bench]:
    with ExitStack() as stack:
        yield Bench(stack.enter_context(open_store(redis_url)), stack)


def entries(client: redis.Redis, stream: str) -> list[tuple[bytes, dict[bytes, bytes]]]:
    found: Any = client.xrange(stream)
    return list(found)


def ids(client: redis.Redis, stream: str) -> list[str]:
    return [fields[b"id"].decode() for _, fields in entries(client, stream)]


def test_nothing_is_early_by_the_receivers_own_clock(bench: Bench, redis_client: redis.Redis) -> None:
    """300 messages become due within a second, and none arrives before its due time.

    The id of a stream entry contains the time of its arrival by the server's clock.
    """
    bench.start(PushTarget(create=True), batch=50)
    now_ms = bench.store.counts().now_us // 1000
    bench.store.schedule([bench.stream(f"m{n}", due_ms=now_ms + 200 + n * 10 // 3) for n in range(300)])
    bench.until(lambda: redis_client.xlen("out") == 300)
    arrivals = [(int(entry.split(b"-")[0]), int(fields[b"due"])) for entry, fields in entries(redis_client, "out")]
    assert min(at_ms - due_ms for at_ms, due_ms in arrivals) >= 0
    assert len(set(ids(redis_client, "out"))) == 300
    assert bench.publisher.asked == []
    assert bench.store.counts().sizes["body"] == 0


def test_streams_and_lists_under_a_prefix(bench: Bench, redis_client: redis.Redis) -> None:
    """`PushTarget` sets the prefix of the target keys. Stream entries keep their fields, and list elements arrive
    complete."""
    bench.start(PushTarget(prefix="app:", create=True))
    bench.store.schedule([bench.stream("s"), Item("l", 0, encode_push("L", "queue", [b"task"]))])
    bench.until(lambda: redis_client.exists("app:out", "app:queue") == 2)
    assert ids(redis_client, "app:out") == ["s"]
    assert redis_client.lrange("app:queue", 0, -1) == [b"task"]


def test_streams_are_trimmed_with_maxlen(bench: Bench, redis_client: redis.Redis) -> None:
    """A stream is trimmed to about `maxlen` entries. The server removes only whole nodes of the stream's tree, so
    more entries may remain."""
    bench.start(PushTarget(create=True, maxlen=100))
    bench.store.schedule([bench.stream(f"m{n}") for n in range(2_000)])
    bench.until(lambda: bench.store.counts().happened("completed") == 2_000)
    assert 100 <= redis_client.xlen("out") <= 300


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (Item("m", 0, encode_push("S", "absent", [b"f", b"v"])), "unknown topic: there is no stream absent"),
        (Item("m", 0, encode_push("S", "text", [b"f", b"v"])), "the target text is no stream: string"),
        (Item("m", 0, encode_push("L", "text", [b"v"])), "the target text is no list: string"),
        (Item("m", 0, b"not in push form"), "quarantine: the body is not in push form"),
    ],
    ids=["unknown stream", "no stream", "no list", "no push form"],
)
def test_the_publisher_decides_about_refused_items(
    bench: Bench, redis_client: redis.Redis, item: Item, reason: str
) -> None:
    """For an item that the server cannot push, the publisher gets the server's reason, and the item is settled with
    the publisher's answer. Other items are pushed."""
    redis_client.set("text", "v")
    redis_client.xadd("out", {"id": "first", "due": 0})
    dispatcher = bench.start()
    bench.store.schedule([item, bench.stream("good")])
    assert bench.reason("m") == "nowhere to go"
    assert bench.publisher.asked == [("m", reason)]
    bench.until(lambda: dispatcher.stats.published == 1)
    assert ids(redis_client, "out") == ["first", "good"]
    bench.until(lambda: (dispatcher.stats.dead, dispatcher.stats.in_flight) == (1, 0))  # these counters change last
    assert redis_client.get("text") == b"v"


def test_a_refused_item_may_be_tried_again(bench: Bench, redis_client: redis.Redis) -> None:
    """The server refuses to push an item, because the target stream does not exist. The publisher answers `Failed`.

    So the push is tried again after a backoff. Once the stream exists, the item arrives once.
    """
    bench.publisher.answer = lambda item: Failed("not yet")
    dispatcher = bench.start()
    bench.store.schedule([bench.stream("m")])
    bench.until(lambda: len(bench.publisher.asked) >= 3)
    redis_client.xgroup_create("out", "readers", mkstream=True)
    bench.until(lambda: redis_client.xlen("out") == 1)
    assert dispatcher.stats.in_doubt == 0
    bench.until(lambda: bench.store.counts().sizes["body"] == 0)


@pytest.mark.parametrize("answer", [Done("m"), Held("m", "look at me"), Next("m", 4_000_000_000_000)])
def test_every_settlement_is_possible_for_a_refused_item(bench: Bench, answer: Answer) -> None:
    """The publisher's answer decides whether a refused item is done, held or due again later."""
    bench.publisher.answer = lambda item: answer
    dispatcher = bench.start()
    bench.store.schedule([bench.stream("m")])
    bench.until(lambda: bool(bench.publisher.asked) and dispatcher.stats.in_flight == 0)
    (found,) = bench.store.get(["m"])
    assert (found.state if found else None) == {"Done": None, "Held": "held", "Next": "due"}[type(answer).__name__]


def test_a_refused_item_may_be_published_by_a_worker(bench: Bench, redis_client: redis.Redis) -> None:
    """`refuse` returns None for one of two items. A worker publishes it: it recurs, and its occurrence is pushed."""
    threads: list[str] = []

    def publish(item: Claimed) -> Answer:
        threads.append(threading.current_thread().name)
        return Recur(item.id, 4_000_000_000_000, occurrences=[replace(bench.stream("run"), route=item.id)])

    bench.publisher.published = publish
    bench.publisher.answer = lambda item: None if item.id == "recurs" else Dead(item.id, "nowhere to go")
    dispatcher = bench.start(PushTarget(create=True))
    bench.store.schedule([Item("recurs", 0, b"no push form"), Item("bad", 0, b"no push form")])
    bench.until(lambda: redis_client.xlen("out") == 1 and dispatcher.stats.in_flight == 0)
    assert ids(redis_client, "out") == ["run"]
    assert bench.reason("bad") == "nowhere to go"
    (found,) = bench.store.get(["recurs"])
    assert found is not None
    assert (found.state, found.score_ms) == ("due", 4_000_000_000_000)
    assert threads[0].startswith("wheel-sched-publisher")


def test_a_publisher_without_a_decision_stops_nothing(bench: Bench, redis_client: redis.Redis) -> None:
    """If `refuse` raises, the refused item is tried again after a backoff, and all other items are pushed."""

    def fail(item: Claimed) -> Answer:
        raise LookupError("of the publisher's own")

    bench.publisher.answer = fail
    redis_client.xgroup_create("out", "readers", mkstream=True)
    dispatcher = bench.start()
    bench.store.schedule([bench.stream("bad", "absent"), bench.stream("good")])
    bench.until(lambda: len(bench.publisher.asked) >= 2)
    bench.until(lambda: redis_client.xlen("out") == 1)
    assert dispatcher.stats.failed >= 1
    assert (dispatcher.stats.dead, dispatcher.stats.in_doubt) == (0, 0)


def test_many_refused_items_are_handled_in_batches(bench: Bench) -> None:
    """The publisher decides about each of 500 items of a topic without a stream, batch by batch."""
    dispatcher = bench.start(batch=40)
    bench.store.schedule([bench.stream(f"m{n}", "absent") for n in range(500)])
    bench.until(lambda: bench.store.counts().sizes["dead"] == 500)
    assert (len(bench.publisher.asked), dispatcher.stats.stale) == (500, 0)


def test_ten_threads_schedule_while_two_dispatchers_push(bench: Bench, redis_client: redis.Redis) -> None:
    """Ten threads store messages while two dispatchers push them. Each message arrives once."""
    bench.start(PushTarget(create=True))
    bench.start(PushTarget(create=True))

    def schedule(thread: int) -> None:
        for n in range(20):
            bench.store.schedule([bench.stream(f"{thread}-{n}-{i}") for i in range(10)])

    threads = [threading.Thread(target=schedule, args=(n,)) for n in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bench.until(lambda: bench.store.counts().sizes["body"] == 0)
    arrived = ids(redis_client, "out")
    assert (len(arrived), len(set(arrived))) == (2_000, 2_000)


@pytest.mark.parametrize("fields", [{"x": "y"}, {"d": "soon"}, {"d": "9" * 40}, {"d": b"\xff"}])
def test_a_strange_entry_in_the_marker_stream_is_skipped_and_reported(
    bench: Bench, redis_client: redis.Redis, caplog: pytest.LogCaptureFixture, fields: dict[Any, Any]
) -> None:
    """The listener skips and logs a marker that it cannot read. The dispatcher stays ready and releases items that
    are stored later."""
    dispatcher = bench.start(PushTarget(create=True))
    bench.until(lambda: dispatcher.ready)
    redis_client.xadd("{wheel:0}:mark", fields)
    bench.until(lambda: dispatcher.stats.marks == 1)
    bench.until(lambda: dispatcher.ready)
    assert "store.strange_marker" in caplog.text
    now_ms = bench.store.counts().now_us // 1000
    bench.store.schedule([bench.stream("m", due_ms=now_ms + 20)])
    bench.until(lambda: ids(redis_client, "out") == ["m"])
    assert dispatcher.stats.reconnects == 0

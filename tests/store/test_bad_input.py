"""The store refuses invalid input before it sends anything. The error names the field and the limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis.asyncio

from wheel_sched.errors import ConfigError, Rejected
from wheel_sched.store import AttemptCounts, open_async_store, open_store
from wheel_sched.store.core.items import MAX_BODY_BYTES, MAX_DUE_MS, Item, Outcome
from wheel_sched.store.core.settle import Dead, Next, Settlement
from wheel_sched.store.memory import MemoryBackend
from wheel_sched.store.redis.backend import RedisBackend
from wheel_sched.store.redis.round_trips import Dialect
from wheel_sched.testing.store_conformance import Bench

YEAR_12000_MS = 316_516_204_800_000

BAD_IDS: dict[str, Any] = {
    "empty": "",
    "none": None,
    "bytes": b"a",
    "number": 7,
    "a megabyte": "x" * 1_000_000,
    "513 bytes": "x" * 513,
    "512 characters of 2 bytes": "é" * 512,
    "lone surrogate": "\ud800",
}
BAD_DUES: dict[str, Any] = {
    "negative": -1,
    "year 12000": YEAR_12000_MS,
    "one past 9999": MAX_DUE_MS + 1,
    "bool": True,
    "float": 5.0,
    "nan": float("nan"),
    "text": "5",
    "huge": 10**30,
}
BAD_TOPICS: dict[str, Any] = {
    "line end": "a\nb",
    "nul": "a\0b",
    "250 characters": "x" * 250,
    "none": None,
    "bytes": b"t",
    "lone surrogate": "\udfff",
}
BAD_BODIES: dict[str, Any] = {"text": "text", "none": None, "mutable": bytearray(b"x"), "dict": {}}


@pytest.fixture(params=["memory", pytest.param("server", marks=pytest.mark.real)])
def bench(request: pytest.FixtureRequest, namespace: str) -> Iterator[Bench]:
    """A test bench with a store in memory or on a real server."""
    if request.param == "memory":
        bench = Bench(MemoryBackend(1, clock="test"), 1)
    else:
        bench = Bench(RedisBackend(request.getfixturevalue("shared_client"), Dialect(namespace)), 1)
    yield bench
    bench.check()


def by_name(values: dict[str, Any]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("value", values.values(), ids=values.keys())


def assert_rejected(bench: Bench, item: Item) -> None:
    """Check that `schedule` and `replace` refuse the item, and that `schedule` stores no other item of the batch."""
    with pytest.raises(Rejected):
        bench.store.schedule([Item("good", 0, b""), item])
    with pytest.raises(Rejected):
        bench.store.replace(item, create=True)
    assert bench.store.counts().happened("accepted") == 0
    assert set(bench.store.counts().sizes.values()) == {0}


@by_name(BAD_IDS)
def test_a_bad_id_is_refused_everywhere(bench: Bench, value: Any) -> None:
    """An id that is empty, too long or no valid text is refused by schedule, cancel, get, release and other calls."""
    assert_rejected(bench, Item(value, 0, b""))
    for call in (bench.store.cancel, bench.store.get, bench.store.delete_dead, bench.store.release):
        with pytest.raises(Rejected):
            call([value])
    with pytest.raises(Rejected):
        AttemptCounts(bench.store).raise_to([(value, 1, 1)])


@by_name(BAD_DUES)
def test_a_bad_due_is_refused_everywhere(bench: Bench, value: Any) -> None:
    """A due time must be whole ms from 1970 to 9999. schedule, reschedule, release, requeue and settle refuse all
    others."""
    assert_rejected(bench, Item("a", value, b""))
    bench.put("x")
    claim = bench.claim()
    calls: list[Callable[[], Any]] = [
        lambda: bench.store.reschedule(["x"], value),
        lambda: bench.store.release(["x"], value),
        lambda: bench.store.requeue([("x", value, None)]),
        lambda: bench.store.settle(claim, [Next("x", value)]),
    ]
    for call in calls:
        with pytest.raises(Rejected):
            call()
    assert bench.settle_all(claim) == [Outcome.DONE]


@by_name(BAD_TOPICS)
def test_a_bad_topic_or_ref_is_refused(bench: Bench, value: Any) -> None:
    """The store refuses an invalid topic or ref, also in a pause and in a search."""
    assert_rejected(bench, Item("a", 0, b"", topic=value))
    assert_rejected(bench, Item("a", 0, b"", refs=(value,)))
    for call in (bench.store.pause, bench.store.resume, bench.store.find):
        with pytest.raises(Rejected):
            call(value)


@pytest.mark.parametrize("route", ["x" * 513, b"r", 7, "\ud800"], ids=["long", "bytes", "number", "surrogate"])
def test_a_bad_route_is_refused(bench: Bench, route: Any) -> None:
    """A route must be text, like an id."""
    assert_rejected(bench, Item("a", 0, b"", route=route))


def test_an_empty_ref_is_refused(bench: Bench) -> None:
    """The store refuses an empty ref, because no search could find it."""
    assert_rejected(bench, Item("a", 0, b"", refs=("",)))


@by_name(BAD_BODIES)
def test_a_body_is_bytes(bench: Bench, value: Any) -> None:
    """Text and mutable buffers are refused as a body: the store does not encode text, and a buffer may change later."""
    assert_rejected(bench, Item("a", 0, value))


def test_a_body_has_at_most_16_mebibytes(bench: Bench) -> None:
    """A body with one byte more is refused, both in a new item and in a settlement."""
    bench.store.schedule([Item("fits", bench.now_ms, bytes(MAX_BODY_BYTES))])
    too_large = bytes(MAX_BODY_BYTES + 1)
    with pytest.raises(Rejected, match=str(MAX_BODY_BYTES)):
        bench.store.schedule([Item("a", 0, too_large)])
    claim = bench.claim()
    settlements: list[Settlement] = [Next("fits", 5, too_large), Dead("fits", "x", too_large)]
    for settlement in settlements:
        with pytest.raises(Rejected):
            bench.store.settle(claim, [settlement])
    assert bench.states("fits") == ["leased"]


def test_a_long_value_is_not_quoted_in_full(bench: Bench) -> None:
    """The error about an id of a megabyte has less than 300 characters."""
    with pytest.raises(Rejected) as caught:
        bench.store.schedule([Item("x" * 1_000_000, 0, b"")])
    assert len(str(caught.value)) < 300


def test_an_unknown_topic_is_no_error(bench: Bench) -> None:
    """Topics need no declaration. A topic without items can be paused, resumed and listed."""
    assert bench.store.pause("nobody") == 0
    assert bench.store.resume("never paused") == 0
    assert bench.store.list_items("due", topic="nothing").found == []


def test_a_client_that_decodes_its_replies_is_refused() -> None:
    """A client with `decode_responses` is refused before it connects, because bodies are bytes."""
    client = redis.Redis.from_url("redis://127.0.0.1:1", decode_responses=True)
    for target in (client, "redis://127.0.0.1:1?decode_responses=true"):
        with pytest.raises(ConfigError, match=r"decode_responses.*nothing was opened"):
            open_store(target)
    with pytest.raises(ConfigError, match=r"decode_responses.*nothing was opened"):
        asyncio.run(open_async_store(redis.asyncio.Redis.from_url("redis://127.0.0.1:1", decode_responses=True)))

"""Items that were written to Redis without the store's scripts: they neither block nor damage other items."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from retry_topic import RetryPolicy
from retry_topic.message import Message
from retry_topic.message.encoding import encode_body
from retry_topic.message.headers import read
from wheel_sched.store import Item

if TYPE_CHECKING:
    import redis
    from conftest import Bench, Handler

pytestmark = pytest.mark.real

Policy = Callable[..., RetryPolicy]
Handlers = Callable[..., "Handler"]
HOUR_MS = 3_600_000
YEAR_12000_MS = 316_516_204_800_000


@pytest.fixture
def serve(server: Bench, handler: Handlers, policy: Policy, hand_over: str) -> Callable[[], Callable[[], None]]:
    """The returned function starts a consumer and a service, and returns a check that a failed message is retried.

    Call it after the items were written by hand. Such a write wakes no dispatcher, so only the next sweep finds them.
    """
    handle = handler(lambda message: None if read(message.headers).attempt else _raise())

    def check() -> None:
        before = len(handle.values)
        server.publish(b"harmless")
        server.until(lambda: handle.values[before:].count(b"harmless") == 2)

    def start() -> Callable[[], None]:
        server.serve(policy(), hand_over=hand_over)
        server.consume(handle)
        check()
        return check

    return start


def _raise() -> None:
    raise ValueError("first")


@pytest.fixture(params=["auto", "settle"])
def hand_over(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("score", ["-62135596800000", "-1", "0", "1.5", "-inf"])
def test_a_due_before_1970_is_due_now(
    server: Bench, serve: Callable[[], Callable[[], None]], redis_client: redis.Redis, score: str
) -> None:
    """An item with a due time before 1970 is sent once, like any overdue item. It does not block the items after it."""
    server.connection.broker.create_topic("archive")
    store = server.connection.store
    store.schedule([Item("old", store.now_ms() + HOUR_MS, encode_body(Message("archive", b"m")), "archive")])
    assert redis_client.execute_command("ZADD", "{wheel:0}:due", "XX", "CH", score, "old") == 1
    assert store.counts().due_head_ms in (0, 2)
    check = serve()
    server.until(lambda: server.waiting() == 0)
    assert [record.value for record in server.records("archive")] == [b"m"]
    assert (store.counts().now, store.counts().sizes["body"]) == ({}, 0)
    check()


@pytest.mark.parametrize("score", [str(YEAR_12000_MS), "9e15", "1e300", "+inf"])
def test_a_due_in_10000_years_waits_and_can_be_brought_forward(
    server: Bench, serve: Callable[[], Callable[[], None]], redis_client: redis.Redis, score: str
) -> None:
    """An item that is due in 10,000 years stays in the store. Other items are released, and `reschedule` can
    make it due now."""
    server.connection.broker.create_topic("archive")
    store = server.connection.store
    store.schedule([Item("far", store.now_ms() + HOUR_MS, encode_body(Message("archive", b"m")), "archive")])
    assert redis_client.execute_command("ZADD", "{wheel:0}:due", "XX", "CH", score, "far") == 1
    check = serve()
    assert store.counts().total("due") == 1
    (found,) = store.get(["far"])
    assert found is not None
    assert found.state == "due"
    store.reschedule(["far"], store.now_ms())
    server.until(lambda: [record.value for record in server.records("archive")] == [b"m"])
    check()


def test_a_record_beyond_every_limit_goes_out_or_is_kept(
    server: Bench, serve: Callable[[], Callable[[], None]], redis_client: redis.Redis
) -> None:
    """An item with a 17 MiB body is sent whole to its topic, or it becomes held or dead. Other messages are retried."""
    value = bytes(17 * 1024 * 1024)
    server.connection.broker.create_topic("archive")
    store = server.connection.store
    store.schedule([Item("big", store.now_ms() + HOUR_MS, b"", "archive")])
    record = redis_client.hget("{wheel:0}:body", "big")
    assert record is not None
    redis_client.hset("{wheel:0}:body", "big", record + encode_body(Message("archive", value)))
    store.reschedule(["big"], store.now_ms())
    check = serve()
    server.until(lambda: store.counts().total("due") + store.counts().total("leased") == 0)
    kept = [found for one in ("held", "dead") for found in store.list_items(one).found]
    assert [record.value for record in server.records("archive")] == ([] if kept else [value])
    check()

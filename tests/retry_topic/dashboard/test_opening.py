"""The connection that the pages share, and the pages over a real server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from retry_topic import Message, connect
from retry_topic.brokers.memory import MemoryBroker
from retry_topic.brokers.redis_streams import RedisStreamsBroker
from retry_topic.dashboard.opening import connection_of


def test_closing_a_dashboard_leaves_its_store_and_a_given_broker_open(see: Callable[..., Any]) -> None:
    """The dashboard does not close a store or a broker that the caller has opened."""
    one = see()
    one.page("/topics")
    one.app.dashboard.close()
    one.connection.broker.create_topic("orders")
    assert one.store.counts().topics == []
    assert "orders" in one.page("/topics")


def test_a_store_in_memory_has_topics_in_memory(see: Callable[..., Any]) -> None:
    """Without a broker, a dashboard over a store in memory makes a broker in memory, and closes it at the end."""
    one = see(given=False)
    assert isinstance(connection_of(one.app.dashboard).broker, MemoryBroker)
    one.app.dashboard.close()
    assert one.store.counts().topics == []


@pytest.mark.real
@pytest.mark.parametrize("shards", [1, 3])
def test_the_pages_and_actions_work_on_a_real_server(see: Callable[..., Any], redis_url: str, shards: int) -> None:
    """The topics are the streams of the store's server, a search finds messages, and each action changes what its
    preview said.
    """
    with connect(redis_url, shards=shards, namespace=f"wheel{shards}") as connection:
        one = see(connection=connection, given=False)
        assert isinstance(connection_of(one.app.dashboard).broker, RedisStreamsBroker)
        connection.broker.create_topic("orders")
        connection.broker.publish([Message("orders", b"1")])
        ids = [one.message(f"m{n}\udcff.2") for n in range(5)]
        dead = one.message("d.2", state="dead")
        topics = one.valid("/topics", "/topics")["topics"]
        assert [(row["records"], row["due"], row["dead"]) for row in topics if row["topic"] == "orders"] == [(1, 5, 1)]
        found = one.valid("/items", "/items", search="topic:orders", limit="3")
        assert len(found["items"]) == 3
        rest = one.valid("/items", "/items", search="topic:orders", limit="3", cursor=found["cursor"])
        assert sorted(row["id"] for row in (*found["items"], *rest["items"])) == sorted([*ids, dead])
        one.act("hold", ids=ids[:2], reason="look at it")
        assert one.found(ids[0]).reason == "look at it"
        one.act("release", search="state:held")
        one.act("reschedule", search="state:due topic:orders", **{"in": "3h"})
        one.act("replay", ids=[dead])
        assert one.found(dead).state == "due"
        one.act("run-now", ids=[ids[2]])
        one.act("delete", ids=[ids[0]])
        assert one.found(ids[0]) is None
        one.valid("/items/{id:path}", "/items/m2%FF.2")
        one.valid("/topics/{topic:path}", "/topics/orders")
        for path in ("/", "/items", "/items/m2%FF.2", "/topics", "/topics/orders"):
            one.page(path)
        one.act("pause-topic", topic="orders")
        one.act("resume-topic", topic="orders", spread="1m")
        one.app.dashboard.close()
        assert connection.store.now_ms() > 0

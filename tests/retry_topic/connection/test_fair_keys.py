"""Messages that are published for later have the fair key of their topic's policy, or the one of the call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from retry_topic import Connection, Consumer, ConsumerConfig, Message, RetryService, connect
from retry_topic.policy import Fair, Fixed, PolicySet, RetryPolicy
from retry_topic.release.fair import KeyRule, share_topics
from wheel_sched.errors import Rejected
from wheel_sched.store import KnownIds, Outcome
from wheel_sched.store.core.plans import shard_of
from wheel_sched.store.fair_shares import fair_key_of, fair_ref
from wheel_sched.store.once_per_key import collapse_ref

SHARDS = 4
CAPPED = Fair("header:tenant", max_in_flight=1)
TENANTS = [f"tenant-{number}" for number in range(8)]


@pytest.fixture(params=["memory", pytest.param("server", marks=pytest.mark.real)])
def connection(request: pytest.FixtureRequest) -> Iterator[Connection]:
    """A connection with four shards, in memory and on a server. The topic "orders" exists."""
    url = "memory:" if request.param == "memory" else request.getfixturevalue("redis_url")
    with connect(url, shards=SHARDS, create_topics=True) as opened:
        opened.broker.create_topic("orders")
        yield opened


def orders(fair: Fair | None) -> PolicySet:
    return PolicySet(topics={"orders": RetryPolicy(delay=Fixed(base_ms=0, jitter="none"), fair=fair)})


def publish(connection: Connection, tenant: str, **more: Any) -> str:
    return connection.publish("orders", b"m", headers=(("tenant", tenant.encode()),), **{"delay": 60, **more})


def keys_of(connection: Connection) -> dict[str, str]:
    return {found.id: fair_key_of(found.refs) for found in connection.store.list_items("due").found}


def test_a_message_for_later_has_the_key_that_the_policy_names(connection: Connection) -> None:
    """The producer has no policies. It finds the key by the rule that the service has stored."""
    share_topics(connection.store, orders(Fair("header:tenant")), by_key=True)
    ids = {publish(connection, tenant): tenant for tenant in TENANTS}
    nameless = connection.publish("orders", b"m", delay=60)
    assert keys_of(connection) == {**ids, nameless: ""}


def test_a_call_can_name_another_key(connection: Connection) -> None:
    share_topics(connection.store, orders(Fair("header:tenant")), by_key=True)
    ids = {publish(connection, "a", fair_key=key): name for key, name in (("b", "b"), (b"c", "c"), ("", ""))}
    assert keys_of(connection) == ids


def test_a_topic_that_is_not_fair_has_no_keys(connection: Connection) -> None:
    """A call may name a key before the topic is fair. When the topic stops being fair, its rule is removed."""
    named = publish(connection, "a", fair_key="b")
    share_topics(connection.store, orders(CAPPED), by_key=True)
    share_topics(connection.store, orders(None), by_key=True)
    plain = publish(connection, "a")
    refs = {found.id: found.refs for found in connection.store.list_items("due").found}
    assert refs == {named: (fair_ref("b"),), plain: ()}


def test_a_new_rule_is_known_after_a_time(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer reads the rule once in 10 s, not for each message."""
    before = publish(connection, "a")
    share_topics(connection.store, orders(CAPPED), by_key=True)
    same = publish(connection, "a")
    monkeypatch.setattr("retry_topic.release.fair._READ_EVERY_S", 0.0)
    after = publish(connection, "a")
    refs = {found.id: found.refs for found in connection.store.list_items("due").found}
    assert refs == {before: (), same: (), after: (fair_ref("a"),)}


def test_all_messages_of_a_limited_key_lie_in_one_shard(connection: Connection) -> None:
    """Because the messages of a key are in one shard, its limit is exact. Each message is found, moved and cancelled by
    its id, although its id alone would choose another shard.
    """
    share_topics(connection.store, orders(CAPPED), by_key=True)
    store = connection.store
    ids = {publish(connection, tenant): tenant for tenant in TENANTS * 2}
    routes = {found.id: found.route for found in store.list_items("due").found}
    assert routes == {name: fair_ref(tenant) for name, tenant in ids.items()}
    away = [name for name, route in routes.items() if route and shard_of(route, SHARDS) != shard_of(name, SHARDS)]
    assert away
    assert [found and found.id for found in store.get(away, anywhere=True)] == away
    due_ms = store.now_ms() + 90_000
    assert store.reschedule(away, due_ms) == [Outcome.DONE] * len(away)
    assert {found.score_ms for found in store.list_items("due").found if found.id in away} == {due_ms}
    assert store.cancel([*ids]) == [Outcome.DONE] * len(ids)
    assert store.counts().total("due") == 0


@pytest.mark.parametrize(("fair", "by_key"), [(CAPPED, False), (Fair("header:tenant"), True)])
def test_messages_lie_in_all_shards_where_no_limit_needs_one(connection: Connection, fair: Fair, by_key: bool) -> None:
    """Without a limit, and with Kafka, the id chooses the shard."""
    share_topics(connection.store, orders(fair), by_key=by_key)
    publish(connection, "a")
    (found,) = connection.store.list_items("due").found
    assert (found.refs, found.route) == ((fair_ref("a"),), None)


def test_a_message_can_have_a_fair_key_and_a_key_to_collapse(connection: Connection) -> None:
    share_topics(connection.store, orders(CAPPED), by_key=True)
    first = publish(connection, "a", collapse="order-7")
    assert publish(connection, "a", collapse="order-7") == first
    (found,) = connection.store.list_items("due").found
    assert (found.refs, found.route) == ((fair_ref("a"), collapse_ref("order-7")), fair_ref("a"))


@pytest.mark.parametrize("first", [None, CAPPED])
def test_a_repeat_with_an_id_sends_nothing_twice(connection: Connection, first: Fair | None) -> None:
    """The given id is found in every shard. So a repeat sends nothing, also after the settings or the key have changed,
    and without a delay.
    """
    share_topics(connection.store, orders(first), by_key=True)
    for tenant in TENANTS:
        publish(connection, tenant, id=f"id-{tenant}")
    share_topics(connection.store, orders(None if first else CAPPED), by_key=True)
    again = Connection(connection.store, connection.broker)  # a new connection reads the new settings
    for tenant in TENANTS:
        assert publish(again, tenant, id=f"id-{tenant}") == f"id-{tenant}"
        publish(again, "another", id=f"id-{tenant}", delay=0)
    assert connection.store.counts().total("due") == len(TENANTS)
    assert connection.broker.topics()["orders"] == 0
    connection.store.cancel([f"id-{tenant}" for tenant in TENANTS])
    assert not any(KnownIds(connection.store).known(f"id-{tenant}", "orders") for tenant in TENANTS)


@pytest.mark.parametrize("wrong", [{"fair_key": 5}, {"fair_key": "a", "delay": None}])
def test_a_wrong_key_sends_nothing(connection: Connection, wrong: dict[str, Any]) -> None:
    with pytest.raises(Rejected, match="nothing was sent"):
        publish(connection, "a", **wrong)
    assert connection.store.counts().ever == {}


@pytest.mark.parametrize("value", [b"", b"[]", b"{", b'{"key": 5, "in_one_shard": true}', b'{"key": "key"}'])
def test_a_rule_of_another_release_counts_as_none(value: bytes) -> None:
    assert KeyRule.read(value) is None


def test_tenants_have_places_of_their_own(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `max_in_flight` 1, at most one message of each tenant runs at a time.

    A slow message of one tenant does not delay the other tenants. In the end all messages have run.
    """
    monkeypatch.setattr("retry_topic.consumer.consumer._POLL_MS", 10)
    monkeypatch.setattr("retry_topic.intake.worker._POLL_MS", 10)
    slow, lock, running, most, done = threading.Event(), threading.Lock(), set[bytes](), 0, list[bytes]()

    def handle(message: Message) -> None:
        nonlocal most
        tenant = dict(message.headers)["tenant"]
        with lock:
            most = max(most, 1 + (tenant in running))
            running.add(tenant)
        if tenant == b"slow":
            slow.wait(40)
        with lock:
            running.discard(tenant)
            done.append(tenant)

    with RetryService(connection, "billing", orders(CAPPED)):
        for tenant in ("slow", "quick") * 3:
            publish(connection, tenant, delay=0.01)
        with Consumer(
            connection, "orders", handle, group="billing", config=ConsumerConfig(concurrency=8, reports=True)
        ):
            until(lambda: done.count(b"quick") == 3)
            assert done == [b"quick"] * 3
            slow.set()
            until(lambda: done.count(b"slow") == 3)
    assert most == 1


def until(condition: Callable[[], bool]) -> None:
    """Wait until `condition` is true, for 40 s at most."""
    timer = threading.Event()
    for _ in range(20_000):
        if condition():
            return
        timer.wait(0.002)  # polls until other threads have finished
    raise AssertionError("waited in vain")

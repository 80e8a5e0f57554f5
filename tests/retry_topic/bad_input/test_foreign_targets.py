"""A forged header or topic name can write neither to a key of the store nor to a topic that is not configured."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from retry_topic import RetryPolicy
from retry_topic.brokers.memory import MemoryBroker
from retry_topic.brokers.redis_streams.publisher import topic_problem
from retry_topic.connection import Connection
from retry_topic.message.headers import RetryState, write
from retry_topic.message.topic_names import redelivery_topic_of, retry_topic_of
from retry_topic.service import RetryService, ServiceConfig
from wheel_sched.dispatcher import Dispatcher, PublisherTraits, PushTarget
from wheel_sched.errors import ConfigError
from wheel_sched.store import Item, encode_push

if TYPE_CHECKING:
    import redis
    from conftest import Bench, Handler

Policy = Callable[..., RetryPolicy]
Handlers = Callable[..., "Handler"]
RETRY = retry_topic_of("billing")


def failed(origin: str, **more: int) -> tuple[tuple[str, bytes], ...]:
    """The headers of a retry record that names `origin` as its topic."""
    return write((), RetryState(attempt=1, original_topic=origin, consumer_group="billing", **more))


def test_a_record_is_not_sent_to_a_topic_that_its_group_does_not_read(
    bench: Bench, handler: Handlers, policy: Policy
) -> None:
    """A retry record names an original topic that its group does not read. The record becomes a dead letter with the
    reason, and nothing is written to that topic."""
    bench.serve(policy(), redelivery="origin")
    handle = handler()
    bench.consume(handle)
    bench.publish(b"private", topic="payroll")
    bench.publish(b"forged", topic=RETRY, headers=failed("payroll"))
    (letter,) = bench.dead()
    assert (letter.reason, letter.topic) == ("unknown-origin: no error", "payroll")
    assert [record.value for record in bench.records("payroll")] == [b"private"]
    assert letter.message is not None
    assert letter.message.topic == redelivery_topic_of("billing")  # a replay does not go to "payroll" either


def test_origins_that_are_configured_are_sent_to_and_no_others(
    memory: Bench, handler: Handlers, policy: Policy
) -> None:
    """A configured origin topic gets its messages even if the group does not read it. A record from a topic that is
    neither configured nor read becomes a dead letter."""
    memory.serve(policy(), redelivery="origin", origins=("payroll",))
    memory.consume(handler())
    memory.publish(b"mine", topic="payroll")
    memory.publish(b"m", topic=RETRY, headers=failed("payroll"))
    memory.publish(b"m", topic=RETRY, headers=failed("orders"))
    (letter,) = memory.dead()
    memory.until(lambda: memory.connection.broker.topics()["payroll"] == 2)
    assert letter.topic == "orders"


def test_a_group_that_joins_a_topic_later_is_found_reading_it(memory: Bench, handler: Handlers, policy: Policy) -> None:
    """The service asks again after one second whether the group reads a topic, because a consumer may start at any
    time."""
    service = memory.serve(policy(), redelivery="origin")
    memory.consume(handler(), "invoices")
    memory.publish(b"m", topic=RETRY, headers=failed("invoices"))
    memory.until(lambda: memory.connection.broker.topics().get("invoices") == 1)
    assert memory.letters() == []
    assert service.ready


def test_a_broker_that_knows_no_readers_needs_configured_origins(memory: Bench, policy: Policy) -> None:
    """If the broker cannot tell which topics a group reads and `origins` is not set, `RetryService` raises an error."""

    class Bare:
        """A broker with the methods of `Broker` only."""

        name = "bare"

        def __init__(self, broker: MemoryBroker) -> None:
            for method in ("publish", "consumer", "create_topic", "topics", "close"):
                setattr(self, method, getattr(broker, method))

    connection = Connection(memory.connection.store, Bare(MemoryBroker()))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="origins"):
        RetryService(connection, "billing", policy(), config=ServiceConfig(redelivery="origin"))
    RetryService(connection, "billing", policy(), config=ServiceConfig(redelivery="origin", origins=("orders",)))


@pytest.mark.parametrize(
    ("given", "redelivery"), [((), "origin"), (("a",), "group"), ("a", "origin"), ([""], "origin")]
)
def test_origins_are_names_and_for_redelivery_to_the_origin_alone(given: object, redelivery: str) -> None:
    """`origins` without `redelivery="origin"` is an error, because it would have no effect. A name that no topic can
    have is an error too."""
    if given == ():
        ServiceConfig(redelivery="origin")
        return
    with pytest.raises(ConfigError, match="origin"):
        ServiceConfig(redelivery=redelivery, origins=given)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["{wheel:0}:mark", "{wheel:12}:due", "{x:0}:anything"])
def test_no_topic_is_named_as_a_key_of_a_delay_store(name: str) -> None:
    """A topic with the name of a store's key is refused, because a publish would overwrite the key."""
    assert topic_problem(name) is not None
    assert topic_problem("{orders}:0") is None


@pytest.mark.real
def test_a_record_that_names_the_marker_stream_stops_nobody(
    server: Bench, handler: Handlers, policy: Policy, redis_client: redis.Redis
) -> None:
    """A retry record names the marker stream as its original topic. Nothing is written there, a later message is
    delivered, and the service is ready."""
    service = server.serve(policy(), redelivery="origin")
    handle = handler()
    server.consume(handle)
    server.publish(b"forged", topic=RETRY, headers=failed("{wheel:0}:mark"))
    server.dead()
    server.connection.publish("orders", b"later", delay=0.05)
    server.until(lambda: b"later" in handle.values)
    assert all(set(fields) == {b"d"} for _, fields in redis_client.xrange("{wheel:0}:mark"))
    assert service.ready


@pytest.mark.real
def test_the_server_pushes_nothing_into_a_store(server: Bench, redis_client: redis.Redis) -> None:
    """An item's body asks the server to publish to a key of a store. The item is refused with the reason, and the
    server does not write the key."""
    store, asked = server.connection.store, []

    class Refusals:
        traits = PublisherTraits()

        def publish(self, batch: object) -> None:
            raise AssertionError("expected the server to push the message")

        def refuse(self, item: object, reason: str) -> object:
            asked.append(reason)
            raise ValueError

    for number, target in enumerate(("{wheel:0}:mark", "{other:3}:mark")):
        store.schedule([Item(f"m{number}", 1, encode_push("S", target, [b"a", b"b"]), "orders")])
    with Dispatcher(store, Refusals(), push=PushTarget(create=True)):  # type: ignore[arg-type]
        server.until(lambda: len(asked) >= 2)
    assert all("key of a delay store" in reason for reason in asked)
    assert not redis_client.exists("{other:3}:mark")


@pytest.mark.real
def test_one_topic_with_a_key_of_another_type_does_not_hide_the_others(
    server: Bench, redis_client: redis.Redis
) -> None:
    """`topics` leaves out a name whose key in Redis is not a stream."""
    server.connection.broker.create_topic("orders")
    redis_client.sadd("topics", "strange")
    redis_client.set("strange", "x")
    assert server.connection.broker.topics() == {"orders": 0}

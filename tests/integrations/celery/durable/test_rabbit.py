"""RabbitMQ is the broker, and the store is another server. The dispatcher claims tasks, publishes them, waits for
RabbitMQ's confirms, and settles the tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from kombu import Connection, Exchange, Queue
from wheel_sched_celery.message.held_task import HeldTask
from wheel_sched_celery.message.stored_forms import values_of
from wheel_sched_celery.release.broker_connection import BrokerConnection

from tests.servers.rabbit import TemporaryRabbit, temporary_rabbit

if TYPE_CHECKING:
    from conftest import Stage, Stages

pytestmark = [pytest.mark.rabbit, pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def rabbit() -> Iterator[TemporaryRabbit]:
    with temporary_rabbit() as node:
        yield node


@pytest.fixture
def stage(stages: Stages, rabbit: TemporaryRabbit) -> Stage:
    """The workers and apps of one test, with RabbitMQ as broker. Another server has the delay store, the results, and
    the list to which each task writes that it ran."""
    stage = stages.stage(broker_url=rabbit.url)
    with Connection(rabbit.url) as connection, connection.channel() as channel:
        for name in ("celery", "left", "right"):
            channel.queue_delete(name)
    return stage


@pytest.fixture
def line(stage: Stage) -> Iterator[BrokerConnection]:
    line = BrokerConnection(stage.app)
    yield line
    line.close()


def held(number: int, queue: str = "", declare: tuple[Any, ...] = (), **changes: Any) -> HeldTask:
    values: dict[str, Any] = {
        "task_id": f"id-{number}",
        "name": "note",
        "retries": 0,
        "eta_ms": 1_800_000_000_000,
        "exchange": "",
        "routing_key": queue,
        "queue": queue,
        "body": f"body {number}".encode(),
        "content_type": "application/data",
        "content_encoding": "binary",
        "headers": {"task": "note", "id": f"id-{number}"},
        "properties": {"correlation_id": f"id-{number}", "delivery_mode": 2},
        "declare": values_of(declare),
    }
    return HeldTask(**{**values, **changes})


def bodies(stage: Stage, queue: str) -> list[bytes]:
    """Takes all messages from a queue and returns their bodies."""
    with Connection(stage.broker_url) as connection, connection.channel() as channel:
        found = []
        while (message := channel.basic_get(queue, no_ack=True)) is not None:
            found.append(bytes(message.body))
        return found


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_held_and_foreign_tasks_run_once_and_none_early(stage: Stage, pool: str) -> None:
    """Tasks of a producer with the integration, and retries, are held at once. Workers take over the tasks of a
    producer with stock Celery."""
    stage.worker(pool=pool).wait_ready()
    ours, theirs = [f"ours {i}" for i in range(50)], [f"theirs {i}" for i in range(50)]
    for i in range(50):
        stage.app.send_task("note", (ours[i],), countdown=3 + i * 0.01)
        stage.stock.send_task("note", (theirs[i],), countdown=4 + i * 0.01)
    stage.app.send_task("again", ("again", 3, 1))
    stage.assert_once([*ours, *theirs, "again", "again"])
    (answer,) = stage.app.control.broadcast("wheel_stats", reply=True, timeout=30, limit=1)
    (stats,) = answer.values()
    assert (stats["dispatcher"]["mode"], stats["dispatcher"]["failed"]) == ("publish", 0)


def test_copies_of_a_topic_exchange_return_to_their_own_queues(stage: Stage) -> None:
    """A topic exchange puts copies of a message into two queues. A worker reads the queue of a copy from its consumer
    tag, so each copy returns to its queue and runs once."""
    stage.worker("-Q", "left,right").wait_ready()
    stage.stock.send_task("note", ("wide",), queue="left", routing_key="a.b", countdown=600)
    stage.wait_held(2)
    stage.bring_forward(1.5)
    stage.assert_once(["wide", "wide"])


def test_a_killed_worker_takes_no_held_task_with_it(stage: Stage) -> None:
    """One of two workers gets SIGKILL while all tasks are held. Each task runs once."""
    first, second = stage.worker(), stage.worker()
    first.wait_ready()
    second.wait_ready()
    names = [f"task {i}" for i in range(100)]
    for name in names:
        stage.app.send_task("note", (name,), countdown=600)
    assert stage.held() == len(names)
    first.kill()
    stage.bring_forward(1.5)
    stage.assert_once(names)


def test_confirmed_messages_are_in_their_queues_in_order(stage: Stage, line: BrokerConnection) -> None:
    """`send` declares the queue and sends a batch of 300 messages. RabbitMQ confirms each of them."""
    queue = Queue("confirmed", Exchange("confirmed"), routing_key="confirmed")
    assert line.send([held(i, "confirmed", (queue,)) for i in range(300)]) == [None] * 300
    assert bodies(stage, "confirmed") == [f"body {i}".encode() for i in range(300)]


def test_a_queue_that_was_deleted_meanwhile_is_made_again(stage: Stage, line: BrokerConnection) -> None:
    """RabbitMQ returns the message as unroutable. The held task has the declaration of its queue, so `send` makes the
    queue again and sends the message."""
    queue = Queue("short-lived", Exchange("short-lived"), routing_key="short-lived")
    assert line.send([held(1, "short-lived", (queue,))]) == [None]
    with Connection(stage.broker_url) as connection, connection.channel() as channel:
        channel.queue_delete("short-lived")
    assert line.send([held(2, "short-lived", (queue,))]) == [None]
    assert bodies(stage, "short-lived") == [b"body 2"]


def test_an_unknown_queue_or_exchange_is_said_and_holds_up_nobody(stage: Stage, line: BrokerConnection) -> None:
    """An unroutable message is not tried again, and the answer says why. The other messages of the batch are sent."""
    queue = Queue("known", Exchange("known"), routing_key="known")
    answers = line.send([held(1, "known", (queue,)), held(2, "nowhere"), held(3, "known", (queue,))])
    assert (answers[0], answers[2]) == (None, None)
    assert answers[1] is not None
    assert not answers[1].transient
    assert "'nowhere'" in answers[1].reason
    (answer,) = line.send([held(4, "key", exchange="no such exchange")])
    assert answer is not None
    assert not answer.transient
    assert "no such exchange" in answer.reason
    assert line.send([held(5, "known", (queue,))]) == [None]
    assert bodies(stage, "known") == [b"body 1", b"body 3", b"body 5"]


def test_a_message_that_the_broker_refuses_stays_with_us(stage: Stage, line: BrokerConnection) -> None:
    """A full queue rejects the message (nack). The answer of `send` says that a later try may succeed."""
    full = Queue("full", queue_arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    answers = [line.send([held(i, "full", (full,))])[0] for i in range(3)]
    assert answers[0] is None
    assert [answer.transient for answer in answers[1:] if answer is not None] == [True, True]
    assert bodies(stage, "full") == [b"body 0"]


def test_what_waits_longer_than_its_ttl_still_reaches_a_worker(stage: Stage, line: BrokerConnection) -> None:
    """A message whose TTL has ended is sent without a TTL, so that a worker can mark the task as revoked. Any other
    message has the rest of its TTL."""
    queue = Queue("ttl", Exchange("ttl"), routing_key="ttl")
    gone = held(1, "ttl", (queue,), properties={"expiration": "50"}, ttl_until_ms=1)
    left = held(2, "ttl", (queue,), properties={"expiration": "50"}, ttl_until_ms=4_000_000_000_000)
    assert line.send([gone, left]) == [None, None]
    with Connection(stage.broker_url) as connection, connection.channel() as channel:
        first, second = (channel.basic_get("ttl", no_ack=True) for _ in range(2))
    assert "expiration" not in first.properties
    assert int(second.properties["expiration"]) == 2**32 - 1


def test_one_bad_message_of_a_batch_is_found_and_the_others_are_sent(stage: Stage, line: BrokerConnection) -> None:
    """RabbitMQ closes the channel because of one message. This message is refused for good, and the others are sent."""
    queue = Queue("neighbours", Exchange("neighbours"), routing_key="neighbours")
    bad = held(2, "neighbours", (queue,), properties={"expiration": "no number", "correlation_id": "id-2"})
    answers = line.send([held(1, "neighbours", (queue,)), bad, held(3, "neighbours", (queue,))])
    assert (answers[0], answers[2]) == (None, None)
    assert answers[1] is not None
    assert not answers[1].transient
    assert set(bodies(stage, "neighbours")) == {b"body 1", b"body 3"}


def test_a_broker_that_dies_over_the_due_times_loses_nothing(stage: Stage, rabbit: TemporaryRabbit) -> None:
    """The test kills the RabbitMQ node and starts it over the same folder. All tasks run at least once, none early."""
    stage.worker().wait_ready()
    names = [f"task {i}" for i in range(100)]
    for i, name in enumerate(names):
        stage.app.send_task("note", (name,), countdown=3 + i * 0.02)
    stage.wait_runs(5)
    rabbit.sigkill()
    rabbit.restart()
    stage.wait_until(lambda: {run.name for run in stage.runs()} == set(names), "all ran")
    counts = Counter(run.name for run in stage.runs())
    doubled = [name for name, count in counts.items() if count > 1]
    assert len(doubled) < len(names), doubled  # what was unconfirmed or unacknowledged when it died, and no more
    assert [run for run in stage.runs() if run.eta_s is not None and run.at_s < run.eta_s] == []

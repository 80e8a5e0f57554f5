"""Ordered keys from end to end: a failed message delays the later messages of its key, and no other key."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from retry_topic import (
    Consumer,
    ConsumerConfig,
    DeadLetter,
    DeadLetters,
    GroupTopics,
    Message,
    Retry,
    RetryPolicy,
    RetryService,
    connect,
)
from retry_topic.brokers.memory import MemoryBroker
from retry_topic.consumer.retry_record import ordered_state
from retry_topic.message.headers import RetryState
from retry_topic.message.topic_names import redelivery_topic_of
from retry_topic.policy import Fair, Fixed, PolicySet
from wheel_sched.errors import ConfigError
from wheel_sched.store.fair_shares import fair_key_of
from wheel_sched.store.ordering import OrderedKeys, Owner, lock_of, scope_of

if TYPE_CHECKING:
    from ..conftest import Bench

IDLE_MS = 30_000


class Journal:
    """A handler that records values by key. `failures` maps a value to how often it fails, or to a handler for it."""

    def __init__(self, **failures: Any) -> None:
        self.failures = {name.encode(): answers for name, answers in failures.items()}
        self.seen: dict[bytes, list[bytes]] = defaultdict(list)
        self.lock = threading.Lock()

    def __call__(self, message: Message) -> Any:
        with self.lock:
            self.seen[message.key or b""].append(message.value)
            left = self.failures.get(message.value)
            if isinstance(left, int) and left > 0:
                self.failures[message.value] = left - 1
                raise OSError("not yet")
        return left(message) if callable(left) else None

    def count(self) -> int:
        with self.lock:
            return sum(map(len, self.seen.values()))


def closed(bench: Bench) -> int:
    return OrderedKeys(bench.connection.store).counts([])[0]


def test_a_failed_message_keeps_back_its_key_and_no_other(bench: Bench, policy: Callable[..., RetryPolicy]) -> None:
    """The messages of the failed key keep their order through two retries. The messages of the other key do not
    wait."""
    journal = Journal(a1=2)
    bench.serve(policy(base_ms=60))
    bench.publish(b"a1", b"a2", b"a3", key=b"a")
    bench.publish(b"b1", b"b2", key=b"b")
    bench.consume(journal, ordering="key", idle_ms=IDLE_MS)
    bench.until(lambda: journal.seen[b"b"] == [b"b1", b"b2"])
    bench.until(lambda: journal.count() == 7)
    assert journal.seen[b"a"] == [b"a1", b"a1", b"a1", b"a2", b"a3"]
    assert journal.seen[b"b"] == [b"b1", b"b2"]
    bench.until(lambda: closed(bench) == 0)
    assert bench.connection.store.counts().total("held") == 0


@pytest.mark.parametrize("topics", [GroupTopics(), GroupTopics("in", "out", "given-up")], ids=("default", "named"))
def test_what_comes_while_a_key_is_closed_is_parked_and_comes_out_in_order(
    bench: Bench, policy: Callable[..., RetryPolicy], topics: GroupTopics
) -> None:
    """While a key is locked, its messages are parked. They are handled in order, even if one of them fails too."""
    release = threading.Event()

    def hold(message: Message) -> Any:
        return None if release.is_set() else Retry(after=0.05)

    journal = Journal(a1=hold, a3=1)
    bench.serve(policy(max_attempts=None), group_topics=topics)
    consumer = bench.consume(journal, ordering="key", idle_ms=IDLE_MS, group_topics=topics)
    bench.publish(b"a1", key=b"a")
    bench.until(lambda: closed(bench) == 1)
    for value in (b"a2", b"a3", b"a4", b"a5"):
        bench.publish(value, key=b"a")
    bench.until(lambda: consumer.stats.parked == 4)
    assert set(journal.seen[b"a"]) == {b"a1"}
    release.set()
    bench.until(lambda: journal.seen[b"a"][-1] == b"a5")
    assert [value for value in journal.seen[b"a"] if value != b"a1"] == [b"a2", b"a3", b"a3", b"a4", b"a5"]
    bench.until(lambda: closed(bench) == 0)
    assert {*topics.of(bench.group).values()} <= {*bench.connection.broker.topics()}


@pytest.mark.parametrize("end", ["verdict", "attempts"])
def test_a_dead_head_lets_the_next_one_follow(bench: Bench, policy: Callable[..., RetryPolicy], end: str) -> None:
    """The failed message of a key becomes a dead letter. Then the key's later messages are handled."""
    journal = Journal(a1=(lambda message: DeadLetter("no use")) if end == "verdict" else 99)
    bench.serve(policy(max_attempts=2))
    bench.publish(b"a1", b"a2", b"a3", key=b"a")
    bench.consume(journal, ordering="key", idle_ms=IDLE_MS)
    bench.until(lambda: journal.seen[b"a"][-1:] == [b"a3"])
    assert journal.seen[b"a"] == [b"a1"] * (1 if end == "verdict" else 2) + [b"a2", b"a3"]
    bench.dead(1)
    bench.until(lambda: closed(bench) == 0)


def test_parked_messages_have_their_fair_keys(bench: Bench) -> None:
    """With `max_in_flight` 1, at most one message of each tenant runs at a time. A slow message of one tenant does not
    delay the other tenant.

    Both tenants have a message parked behind each of three ordering keys. In the end all messages are handled.
    """
    heads, slow, lock = threading.Event(), threading.Event(), threading.Lock()
    running, most, done = set[bytes](), 0, list[tuple[bytes, bytes]]()

    def handle(message: Message) -> Any:
        nonlocal most
        tenant, key = dict(message.headers)["tenant"], message.key or b""
        if message.value == b"head":
            return None if heads.is_set() else Retry(after=0.05)
        with lock:
            most = max(most, 1 + (tenant in running))
            running.add(tenant)
        if tenant == b"slow":
            slow.wait(40)
        with lock:
            running.discard(tenant)
            done.append((tenant, key))
        return None

    fair = RetryPolicy(delay=Fixed(base_ms=10), max_attempts=None, fair=Fair("header:tenant", max_in_flight=1))
    bench.serve(PolicySet(topics={"orders": fair}))
    consumer = bench.consume(handle, ordering="key", idle_ms=IDLE_MS, reports=True)
    keys = [(tenant, b"%s-%d" % (tenant, number)) for tenant in (b"slow", b"quick") for number in range(3)]
    for _, key in keys:
        bench.publish(b"head", key=key, headers=(("tenant", b"head-" + key),))
    bench.until(lambda: closed(bench) == len(keys))
    for tenant, key in keys:
        bench.publish(b"parked", key=key, headers=(("tenant", tenant),))
    bench.until(lambda: consumer.stats.parked == len(keys))
    held = bench.connection.store.list_items("held").found
    assert sorted(fair_key_of(found.refs) for found in held) == ["quick"] * 3 + ["slow"] * 3
    heads.set()
    bench.until(lambda: len(done) == 3)
    assert {tenant for tenant, _ in done} == {b"quick"}
    slow.set()
    bench.until(lambda: sorted(done) == sorted(keys))
    assert most == 1


def test_parking_is_no_attempt(bench: Bench, policy: Callable[..., RetryPolicy]) -> None:
    """A message that was parked still has all its attempts."""
    journal = Journal(a1=1, a2=99)
    bench.serve(policy(max_attempts=3))
    bench.publish(b"a1", b"a2", key=b"a")
    bench.consume(journal, ordering="key", idle_ms=IDLE_MS)
    (letter,) = bench.dead(1)
    assert journal.seen[b"a"] == [b"a1"] * 2 + [b"a2"] * 3
    assert (letter.state.attempt, letter.state.original_topic) == (3, "orders")


def test_a_replayed_letter_comes_outside_the_order(bench: Bench, policy: Callable[..., RetryPolicy]) -> None:
    """A replayed message is handled even while its key is locked. Its success does not unlock the key."""
    release = threading.Event()
    journal = Journal(
        a1=lambda message: None if release.is_set() else DeadLetter("later"),
        a2=lambda message: None if release.is_set() else Retry(after=0.05),
    )
    bench.serve(policy(max_attempts=None))
    bench.publish(b"a1", b"a2", b"a3", key=b"a")
    consumer = bench.consume(journal, ordering="key", idle_ms=IDLE_MS)
    bench.dead(1)
    bench.until(lambda: consumer.stats.parked >= 1 and len(journal.seen[b"a"]) > 2)
    release.set()
    DeadLetters(bench.connection).replay()
    bench.until(lambda: journal.seen[b"a"].count(b"a1") == 2 and b"a3" in journal.seen[b"a"])
    bench.until(lambda: closed(bench) == 0)
    assert bench.connection.store.counts().total("dead") == 0


def test_a_second_copy_of_a_head_that_has_succeeded_is_not_handled(
    bench: Bench, policy: Callable[..., RetryPolicy]
) -> None:
    """The broker delivers a head again after its success. The consumer settles this copy without handling it."""
    journal = Journal(a1=1)
    bench.serve(policy())
    bench.publish(b"a1", key=b"a")
    consumer = bench.consume(journal, ordering="key", idle_ms=IDLE_MS)
    bench.until(lambda: consumer.stats.acknowledged == 1 and closed(bench) == 0)
    (copy,) = bench.records(redelivery_topic_of(bench.group))
    bench.connection.broker.publish([copy.to(copy.topic)])
    bench.until(lambda: consumer.stats.acknowledged == 2)
    assert journal.count() == 2


def test_a_full_queue_keeps_the_rest_unsettled_until_there_is_room(
    bench: Bench, policy: Callable[..., RetryPolicy]
) -> None:
    """At most `parked_cap` messages of a key are parked. Later ones stay unsettled and in order. Other keys are
    handled."""
    release = threading.Event()
    journal = Journal(a1=lambda message: None if release.is_set() else Retry(after=0.05))
    bench.serve(policy(max_attempts=None))
    values = [b"a%d" % number for number in range(1, 9)]
    bench.publish(*values, key=b"a")
    consumer = bench.consume(journal, ordering="key", parked_cap=2, idle_ms=IDLE_MS)
    bench.until(lambda: consumer.stats.parked == 2)
    bench.publish(b"b1", key=b"b")
    bench.until(lambda: journal.seen[b"b"] == [b"b1"])
    release.set()
    bench.until(lambda: journal.seen[b"a"][-1] == values[-1])
    assert [value for value in journal.seen[b"a"] if value != b"a1"] == values[1:]
    bench.until(lambda: closed(bench) == 0)


def test_messages_without_a_key_have_no_order(bench: Bench, policy: Callable[..., RetryPolicy]) -> None:
    """Messages without a key are retried as usual and delay no other message."""
    journal = Journal(x1=1)
    bench.serve(policy(base_ms=100))
    bench.publish(b"x1", b"x2")
    consumer = bench.consume(journal, ordering="key", idle_ms=IDLE_MS)
    bench.until(lambda: journal.count() == 3)
    assert sorted(journal.seen[b""]) == [b"x1", b"x1", b"x2"]
    assert (closed(bench), consumer.stats.parked) == (0, 0)


def test_one_consumer_of_a_group_reads_and_another_takes_over(bench: Bench, policy: Callable[..., RetryPolicy]) -> None:
    """Only one consumer of a group reads a topic. Another one begins after the first has stopped."""
    first, second = Journal(), Journal()
    bench.serve(policy())
    bench.connection.broker.create_topic("orders")
    one = bench.consume(first, ordering="key", idle_ms=IDLE_MS)
    bench.publish(*(b"%d" % number for number in range(20)), key=b"a")
    bench.until(lambda: first.count() == 20)
    bench.consume(second, ordering="key", idle_ms=IDLE_MS)
    one.stop()
    bench.publish(b"next", key=b"a")
    bench.until(lambda: second.seen[b"a"] == [b"next"])


def test_an_async_handler_keeps_the_order(bench: Bench, policy: Callable[..., RetryPolicy]) -> None:
    """Messages of a key keep their order with an async handler too."""
    journal = Journal(a1=2)

    async def handle(message: Message) -> Any:
        return journal(message)

    bench.serve(policy())
    bench.publish(b"a1", b"a2", b"a3", key=b"a")
    bench.consume(handle, ordering="key", idle_ms=IDLE_MS)
    bench.until(lambda: journal.count() == 5)
    assert journal.seen[b"a"] == [b"a1", b"a1", b"a1", b"a2", b"a3"]


def test_signed_headers_keep_the_order(bench: Bench, policy: Callable[..., RetryPolicy]) -> None:
    """With secrets, parked messages are signed, so that the consumer accepts them when they come back."""
    secrets = (b"0123456789abcdef",)
    journal = Journal(a1=1, a2=1)
    bench.serve(policy(), secrets=secrets)
    bench.publish(b"a1", b"a2", b"a3", key=b"a")
    bench.consume(journal, ordering="key", secrets=secrets, idle_ms=IDLE_MS)
    bench.until(lambda: journal.count() == 5)
    assert journal.seen[b"a"] == [b"a1", b"a1", b"a2", b"a2", b"a3"]
    bench.until(lambda: closed(bench) == 0)


def test_a_head_whose_consumer_died_before_telling_its_failure_is_handled_again(
    bench: Bench, policy: Callable[..., RetryPolicy]
) -> None:
    """A consumer locked the key of a message and died before it reported the failure. The next consumer handles the
    message again and keeps the order of the key."""
    bench.publish(b"a1", b"a2", b"a3", key=b"a")
    dead = bench.connection.broker.consumer(["orders"], "crashed")
    (delivery,) = dead.poll(1, 10_000)
    dead.close()
    scope = scope_of(bench.group, "orders")
    key_lock = lock_of(scope, b"a")
    id_base = ordered_state(bench.group, delivery.message, RetryState(), key_lock).id_base
    locks = OrderedKeys(bench.connection.store)
    epoch = locks.acquire(scope, "crashed", 60_000).epoch
    locks.close(Owner(scope, "crashed", epoch), [(key_lock, id_base, True, "a")])
    locks.release(scope, "crashed")
    journal = Journal()
    bench.serve(policy())
    bench.consume(journal, ordering="key", idle_ms=IDLE_MS)
    bench.until(lambda: journal.seen[b"a"] == [b"a1", b"a2", b"a3"])
    bench.until(lambda: closed(bench) == 0)


def test_a_parked_message_that_has_expired_is_given_up_when_its_turn_comes(
    bench: Bench, policy: Callable[..., RetryPolicy]
) -> None:
    """A parked message that has expired becomes a dead letter. Then the next message of its key is handled."""
    journal = Journal(a1=1)
    bench.serve(policy(), redelivery="origin")
    bench.publish(b"a1", key=b"a")
    bench.publish(b"a2", key=b"a", headers=(("expires-at", b"1000"),))
    bench.publish(b"a3", key=b"a")
    bench.consume(journal, ordering="key", idle_ms=IDLE_MS)
    bench.until(lambda: journal.seen[b"a"] == [b"a1", b"a1", b"a3"])
    assert bench.dead(1)[0].state.error_class == "expired"
    bench.until(lambda: closed(bench) == 0)


def test_the_order_holds_on_a_namespace_of_several_shards(quick_poll: None, policy: Callable[..., RetryPolicy]) -> None:
    """The key locks and parked messages of a topic are in one shard, so each key keeps its order."""
    journal = Journal(a1=2, b2=1)
    with connect("memory:", shards=4) as connection:
        connection.broker.create_topic("orders")
        connection.broker.publish([Message("orders", b"a%d" % n, b"a") for n in range(1, 6)])
        connection.broker.publish([Message("orders", b"b%d" % n, b"b") for n in range(1, 6)])
        done = threading.Event()

        def handle(message: Message) -> Any:
            answer = journal(message)
            if journal.seen[b"a"][-1:] == [b"a5"] and journal.seen[b"b"][-1:] == [b"b5"]:
                done.set()
            return answer

        config = ConsumerConfig(ordering="key", idle_ms=IDLE_MS)
        with RetryService(connection, "g", policy()), Consumer(connection, "orders", handle, group="g", config=config):
            assert done.wait(30)
    assert journal.seen[b"a"] == [b"a1", b"a1", b"a1", b"a2", b"a3", b"a4", b"a5"]
    assert journal.seen[b"b"] == [b"b1", b"b2", b"b2", b"b3", b"b4", b"b5"]


def test_a_broker_whose_topics_are_logs_is_refused() -> None:
    """With a broker whose topics are logs, `Consumer(...)` refuses `ordering="key"`."""

    class Logs(MemoryBroker):
        transactions = False

        def log_reader(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError

        def sender(self, *_: Any) -> None:
            return None

    with connect("memory:", broker=Logs()) as connection:
        with pytest.raises(ConfigError, match="expected ordering to be 'none' with Logs"):
            Consumer(connection, "orders", Journal(), group="g", config=ConsumerConfig(ordering="key"))
        Consumer(connection, "orders", Journal(), group="g", config=ConsumerConfig())

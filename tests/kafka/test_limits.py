"""The limits of a policy hold for messages that are published in transactions. A message that a limit delays loses no
attempt.

In these tests retries wait for an hour, and one call makes all of them due. So all messages become due together, even
on a slow machine, and the test knows how many a limit must hold back.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from retry_topic import Connection, Consumer, ConsumerConfig, Message, RetryPolicy, RetryService, connect, load_policies
from retry_topic.brokers.kafka import KafkaBroker
from retry_topic.message.headers import read
from retry_topic.message.topic_names import redelivery_topic_of, retry_topic_of
from retry_topic.policy import Breaker, Budget, Fixed, Rate
from tests.servers.valkey import temporary_server
from wheel_sched.store import Outcome
from wheel_sched.store.rate_limits import RateLimits

if TYPE_CHECKING:
    from conftest import Until

    from tests.servers.kafka import TemporaryKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

LATER = Fixed(base_ms=3_600_000)


@pytest.fixture
def connection(kafka: TemporaryKafka, name: str) -> Iterator[Connection]:
    """A connection with the test session's broker and a store in the memory of this process."""
    with connect("memory:", broker=KafkaBroker(kafka.bootstrap, partitions=2), namespace=name) as connection:
        connection.broker.create_topic(f"{name}-orders")
        yield connection


def flow(connection: Connection, destination: str | None = None) -> Any:
    """The counts of the only topic's limits, or of a destination's circuit. None if nothing was counted."""
    return next((one for one in RateLimits(connection.store).flows() if one.destination == destination), None)


def let_go(connection: Connection) -> None:
    """Make all waiting messages due now, in one step."""
    waiting = [item.id for item in connection.store.list_items("due", limit=500).found]
    outcomes = connection.store.reschedule(waiting, connection.store.now_ms())
    assert set(outcomes) <= {Outcome.DONE, Outcome.IN_FLIGHT, Outcome.ABSENT}, outcomes


def waiting(connection: Connection) -> int:
    return connection.store.counts().total("due")


def test_equal_dues_are_spread(connection: Connection, name: str, until: Until) -> None:
    """Messages that fail at the same moment become due evenly over the spread, and never before the delay."""
    delay_ms, spread_ms, count = 3_600_000, 600_000, 200
    policy = RetryPolicy(delay=Fixed(base_ms=delay_ms), spread_ms=spread_ms)
    connection.broker.create_topic(retry_topic_of(name))
    began_ms = connection.store.now_ms()
    with RetryService(connection, name, policy):
        assert not any(connection.broker.publish([Message(retry_topic_of(name), b"%d" % n) for n in range(count)]))
        until(lambda: waiting(connection) == count, connection.store.counts)
        taken_ms = connection.store.now_ms() - began_ms
        dues_ms = sorted(item.score_ms for item in connection.store.list_items("due", limit=500).found)
    assert len(dues_ms) == count
    assert dues_ms[0] >= began_ms + delay_ms
    assert dues_ms[-1] <= began_ms + delay_ms + spread_ms + taken_ms
    thirds = Counter((due_ms - dues_ms[0]) * 3 // (dues_ms[-1] - dues_ms[0] + 1) for due_ms in dues_ms)
    assert min(thirds[third] for third in range(3)) > count / 10, thirds  # about 67 are expected in each third
    assert flow(connection).numbers["spread"] == count


def test_a_budget_limits_the_rate_of_retries(
    connection: Connection, name: str, committed: Callable[[str], list[Message]], until: Until
) -> None:
    """A budget allows one retry per hundred first attempts, and always four per second. Twelve retries are due: four
    are released at once, the others at four per second. Each message returns exactly once."""
    count, a_second = 12, 4
    policy = RetryPolicy(delay=LATER, max_attempts=2, budget=Budget(1, Rate(a_second, "s")))
    seen: list[bytes] = []

    def handle(message: Message) -> None:
        if not read(message.headers).attempt:
            raise OSError("not yet")
        seen.append(message.value)

    config = ConsumerConfig(reports=True, concurrency=1)
    with RetryService(connection, name, policy) as service:
        assert service.hand_over == "transactions"
        with Consumer(connection, f"{name}-orders", handle, group=name, config=config):
            assert not any(connection.broker.publish([Message(f"{name}-orders", b"%d" % n) for n in range(count)]))
            until(lambda: waiting(connection) == count, connection.store.counts)
            began_ms = connection.store.now_ms()
            let_go(connection)
            until(lambda: len(seen) == count, lambda: (seen, flow(connection), connection.store.counts()))
            took_ms = connection.store.now_ms() - began_ms
        numbers = flow(connection).numbers
    assert numbers["granted"] == count
    assert numbers["budget"] >= count - a_second
    # the budget's share of the first attempts adds less than 1 % to the four per second
    assert took_ms >= (count - a_second) * 990 / a_second
    redelivered = committed(redelivery_topic_of(name))
    assert Counter(message.value for message in redelivered) == Counter(b"%d" % n for n in range(count))
    assert {read(message.headers).attempt for message in redelivered} == {1}


def test_an_open_circuit_lets_probes_through_until_one_succeeds(
    connection: Connection, name: str, committed: Callable[[str], list[Message]], until: Until
) -> None:
    """While the destination is down, only probes reach it. After a probe has succeeded, all messages are
    handled, and none is dead."""
    count = 30
    down = threading.Event()
    down.set()

    def handle(message: Message) -> None:
        if down.is_set():
            raise ConnectionError("nobody answers")

    def circuit() -> Any:
        return flow(connection, "ill")

    def failures() -> int:
        numbers = {} if circuit() is None else circuit().numbers
        return int(numbers.get("bad0", 0) + numbers.get("bad1", 0))

    def all_through() -> bool:
        soon_ms = connection.store.now_ms() + 600_000
        if not connection.store.list_items("due", greatest_ms=soon_ms, limit=1).found:
            let_go(connection)  # failed probes wait for an hour again; other messages become due by themselves
        return consumer.stats.acknowledged == count

    breaker = Breaker(percent=50, of=5, within_ms=3_600_000, open_ms=200, by="x-host")
    policy = RetryPolicy(delay=LATER, max_attempts=None, breaker=breaker)
    config = ConsumerConfig(reports=True, destination="x-host")
    headers = (("x-host", b"ill"),)
    with RetryService(connection, name, policy) as service:
        assert service.hand_over == "transactions"
        with Consumer(connection, f"{name}-orders", handle, group=name, config=config) as consumer:
            records = [Message(f"{name}-orders", b"%d" % n, None, headers) for n in range(count)]
            assert not any(connection.broker.publish(records))
            until(lambda: waiting(connection) == failures() == count, lambda: (connection.store.counts(), circuit()))
            assert consumer.stats.delivered == count
            let_go(connection)  # no message is in flight now, so the circuit has let each later delivery through
            until(lambda: circuit().numbers.get("probes", 0) >= 3, circuit)
            until(lambda: consumer.stats.delivered > count, lambda: (consumer.stats, circuit()))
            came = consumer.stats.delivered - count
            assert came <= circuit().numbers["probes"]
            assert circuit().numbers["refused"] >= count
            down.clear()
            until(all_through, lambda: (consumer.stats, circuit(), connection.store.counts()))
        assert connection.store.counts().total("dead") == 0
    attempts = Counter(message.value for message in committed(redelivery_topic_of(name)))
    assert set(attempts) == {b"%d" % n for n in range(count)}


FILE = """
[default]
delay = { kind = "fixed", base = "1h" }

[topic.NAME-spread]
spread = "10m"

[topic.NAME-rate]
rate = "1/h"
burst = 1

[topic.NAME-budget]
budget = { share = "1%", least = "1/h" }

[topic.NAME-breaker]
breaker = { failures = "50%", of = 3, within = "10m", open = "10m" }
"""


def test_each_limit_is_seen_in_stats_and_explained(
    kafka: TemporaryKafka, name: str, tmp_path: Path, until: Until
) -> None:
    """Three messages of each of four topics become due at once. `stats` shows what each limit did, for people and as
    JSON. `policy explain` says what the limit does, and why a message waits."""
    policies = tmp_path / "policies.toml"
    policies.write_text(FILE.replace("NAME", name))
    topics = [f"{name}-{limit}" for limit in ("spread", "rate", "budget", "breaker")]

    def output_of(*words: str) -> str:
        start = [sys.executable, "-m", "wheel_sched.cli", "--store", server.url, "--kafka", kafka.bootstrap]
        command = [*start, "--namespace", name, *words]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert ended.returncode == 0, (ended.stdout, ended.stderr)
        return ended.stdout

    def flows() -> dict[tuple[str, str | None], dict[str, int]]:
        found = RateLimits(connection.store).flows()
        return {(one.topic.removeprefix(f"{name}/{name}-"), one.destination): one.numbers for one in found}

    def number(limit: str, destination: str | None, *names: str) -> int:
        return sum(flows().get((limit, destination), {}).get(each, 0) for each in names)

    def handle(message: Message) -> None:
        if not read(message.headers).attempt:
            raise ConnectionError("nobody answers")

    broker = KafkaBroker(kafka.bootstrap)
    with temporary_server() as server, connect(server.url, broker=broker, namespace=name) as connection:
        service = RetryService(connection, name, load_policies(policies.read_text()))
        for topic in topics:
            broker.create_topic(topic)
        with service, Consumer(connection, topics, handle, group=name, config=ConsumerConfig(reports=True)):
            assert not any(broker.publish([Message(topic, b"%d" % n) for topic in topics for n in range(3)]))
            until(lambda: waiting(connection) == 12 and number("breaker", "", "bad0", "bad1") == 3, flows)
            let_go(connection)
            until(lambda: number("rate", None, "rate") == number("budget", None, "budget") == 2, flows)
            until(lambda: number("breaker", "", "refused") == number("spread", None, "spread") == 3, flows)
        rows = {(row["topic"], row["destination"]): row for row in json.loads(output_of("stats", "--json"))["flows"]}
        text = output_of("stats")
        (waits, *_) = connection.store.list_items("due", topic=f"{name}-rate").found
        why = output_of("policy", "explain", "--id", waits.id)
    spread, rate, budget = (rows[f"{name}/{topic}", None] for topic in topics[:3])
    assert spread["spread"] == 3
    assert (rate["granted"], rate["rate"]) == (budget["granted"], budget["budget"]) == (1, 2)
    circuit = rows[f"{name}/{name}-breaker", ""]
    assert (circuit["circuit"], circuit["refused"], circuit["opens"]) == ("open", 3, 1)
    assert f"{name}-spread: 3 spread" in text
    assert f"{name}-rate: 1 released, 2 held back by the rate" in text
    assert f"{name}-budget: 1 released, 2 held back by the budget" in text
    assert f"{name}-breaker (all): circuit open until" in text
    assert "flow control holds it back: rate of" in why
    for topic in topics:
        words = output_of("policy", "explain", str(policies), "--topic", topic)
        limit = topic.removeprefix(f"{name}-")
        assert [line for line in words.splitlines() if line.startswith(f"{limit}: ")], words

"""Messages are parked behind a failed message of their key, in order and up to a limit. A command lists them."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from retry_topic import Consumer, ConsumerConfig, Message, RetryPolicy, RetryService, connect
from retry_topic.brokers.kafka import KafkaBroker
from retry_topic.policy import Fixed
from tests.servers.valkey import temporary_server
from wheel_sched.store.ordering import OrderedKeys

if TYPE_CHECKING:
    from conftest import Until

    from tests.servers.kafka import TemporaryKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]


def test_list_parked_shows_the_line_behind_a_failed_message(kafka: TemporaryKafka, name: str, until: Until) -> None:
    """The failed message (the head) waits for its retry, and the next three of its key (the limit) are parked in order.
    Later messages of the key stay with the consumer. Messages of another key in the same partition are handled. After
    the head has succeeded, the messages of its key follow in order."""
    seen: list[bytes] = []
    well = threading.Event()

    def handle(message: Message) -> None:
        seen.append(message.value)
        if message.value == b"a1" and not well.is_set():
            raise OSError("not yet")

    def state() -> object:
        return seen, connection.store.counts()

    def listed(*words: str) -> list[dict[str, str]]:
        start = [sys.executable, "-m", "wheel_sched.cli", "--store", server.url, "--kafka", kafka.bootstrap]
        command = [*start, "--namespace", name, *words, "--json"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert ended.returncode == 0, (ended.stdout, ended.stderr)
        return [json.loads(line) for line in ended.stdout.splitlines()]

    broker = KafkaBroker(kafka.bootstrap)
    policy = RetryPolicy(delay=Fixed(base_ms=3_600_000))
    config = ConsumerConfig(ordering="key", parked_cap=3)
    with temporary_server() as server, connect(server.url, broker=broker, namespace=name) as connection:
        broker.create_topic(f"{name}-orders")
        with (
            RetryService(connection, name, policy),
            Consumer(connection, f"{name}-orders", handle, group=name, config=config),
        ):
            values = [(b"a", b"a%d" % n) for n in range(1, 9)] + [(b"b", b"b1"), (b"b", b"b2")]
            assert not any(broker.publish([Message(f"{name}-orders", value, key) for key, value in values]))
            locks = OrderedKeys(connection.store)
            until(lambda: {b"a1", b"b1", b"b2"} <= set(seen), state)
            until(lambda: locks.counts([f"{name}-orders"])[1] == {f"{name}-orders": 3}, state)
            until(lambda: connection.store.counts().total("due") == 1, state)  # the head waits for its retry
            # b3 is published after all messages of key a: once it is handled, the consumer has read them all
            assert not any(broker.publish([Message(f"{name}-orders", b"b3", b"b")]))
            until(lambda: b"b3" in seen, state)
            assert [row["key"] for row in listed("list", "--parked")] == ["a"] * 3
            assert listed("list", "--parked", "--key", "b") == []
            (row,) = listed("keys", "list")
            assert (row["key"], row["parked"], row["head_state"]) == ("a", 3, "waiting")
            assert {value for value in seen if value.startswith(b"a")} == {b"a1"}
            failed = len(seen)
            well.set()
            listed("run-now", row["head"])
            until(lambda: b"a8" in seen, state)
            follow = [value for value in seen[failed:] if value.startswith(b"a")]
            assert list(dict.fromkeys(follow)) == [b"a%d" % n for n in range(1, 9)]
            until(lambda: locks.counts([])[0] == 0, state)
            assert listed("list", "--parked") == listed("keys", "list") == []

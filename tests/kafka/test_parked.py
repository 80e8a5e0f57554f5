"""What stands behind a failed message of its key is seen on the command line, and follows in order."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from retry_topic import Consumer, ConsumerConfig, Message, RetryPolicy, RetryService, connect
from retry_topic.brokers.kafka import KafkaBroker
from retry_topic.policy import Fixed
from wheel_sched.testing.servers import temporary_server

if TYPE_CHECKING:
    from wheel_sched.testing.kafka import TemporaryKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]

PATIENCE_S = 60.0


def test_ls_parked_shows_the_line_behind_a_failed_message(kafka: TemporaryKafka, name: str) -> None:
    """The head waits for its retry, three are parked in order; another key of the same partition flows."""
    from wheel_sched.cli.program import cli

    seen: list[bytes] = []
    well = threading.Event()

    def handle(message: Message) -> None:
        seen.append(message.value)
        if message.value == b"a1" and not well.is_set():
            raise OSError("not yet")

    def until(*values: bytes) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while not set(seen).issuperset(values):
            assert time.monotonic() < until_s, seen
            time.sleep(0.02)  # other threads' doing; there is nothing to wait on

    def listed(*words: str) -> list[dict[str, str]]:
        start = ["--store", server.url, "--kafka", kafka.bootstrap, "--namespace", name]
        result = CliRunner().invoke(cli, [*start, *words, "--json"])
        assert result.exit_code == 0, result.output
        return [json.loads(line) for line in result.stdout.splitlines()]

    broker = KafkaBroker(kafka.bootstrap)
    policy = RetryPolicy(delay=Fixed(base_ms=3_600_000))
    config = ConsumerConfig(ordering="key")
    with temporary_server() as server, connect(server.url, broker=broker, namespace=name) as home:
        broker.create_topic(f"{name}-orders")
        with RetryService(home, name, policy), Consumer(home, f"{name}-orders", handle, group=name, config=config):
            values = [(b"a", b"a%d" % n) for n in range(1, 5)] + [(b"b", b"b1"), (b"b", b"b2")]
            assert not any(broker.publish([Message(f"{name}-orders", value, key) for key, value in values]))
            until(b"a1", b"b1", b"b2")
            until_s = time.monotonic() + PATIENCE_S
            while len(parked := listed("ls", "--parked")) < 3:
                assert time.monotonic() < until_s, parked
                time.sleep(0.05)  # other threads' doing; there is nothing to wait on
            assert [row["key"] for row in parked] == ["a"] * 3
            assert [row["id"] for row in listed("ls", "--parked", "--key", "b")] == []
            while home.store.counts().total("due") == 0:  # the head, when its retry record was taken in
                assert time.monotonic() < until_s, home.store.counts()
                time.sleep(0.02)  # other threads' doing; there is nothing to wait on
            (row,) = listed("keys")
            assert (row["key"], row["parked"]) == ("a", 3)
            assert not {b"a2", b"a3", b"a4"}.intersection(seen)
            failed = len(seen)
            well.set()
            listed("retry", row["head"])
            until(b"a2", b"a3", b"a4")
            assert list(dict.fromkeys(seen[failed:])) == [b"a1", b"a2", b"a3", b"a4"]
            until_s = time.monotonic() + PATIENCE_S
            while listed("ls", "--parked") or listed("keys"):
                assert time.monotonic() < until_s, listed("keys")
                time.sleep(0.05)  # other threads' doing; there is nothing to wait on

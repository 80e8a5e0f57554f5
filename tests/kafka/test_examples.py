"""The examples and commands of the Kafka documentation work when they are run as a reader would run them."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pytest

from retry_topic import connect
from retry_topic.brokers.conformance import receive
from retry_topic.brokers.kafka import KafkaBroker
from retry_topic.message import Message
from retry_topic.message.headers import RetryState, read, write
from retry_topic.message.topic_names import dead_topic_of, redelivery_topic_of

if TYPE_CHECKING:
    from tests.servers.kafka import TemporaryKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def broker(kafka: TemporaryKafka) -> Iterator[KafkaBroker]:
    """A client of the test session's Kafka broker."""
    broker = KafkaBroker(kafka.bootstrap)
    yield broker
    broker.close()


def run(*arguments: object, cwd: Path, code: int = 0) -> list[str]:
    """Run a program and check its exit code. Returns the lines that it prints."""
    ended = subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=cwd, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == code, ended.stderr
    return ended.stdout.splitlines()


def test_three_lines_make_failures_come_back(
    broker: KafkaBroker, kafka: TemporaryKafka, name: str, tmp_path: Path
) -> None:
    """The example's plain loop ends at its first failure. The same loop with retries ships every order."""
    broker.create_topic(name)
    broker.publish([Message(name, b"order %d" % n) for n in range(5)])
    assert run(EXAMPLES / "kafka_migration.py", "before", kafka.bootstrap, name, cwd=tmp_path, code=1) == []
    again = f"{name}-again"  # the loop with retries gets its own topic
    broker.create_topic(again)
    broker.publish([Message(again, b"order %d" % n) for n in range(5)])
    lines = run(EXAMPLES / "kafka_migration.py", "after", kafka.bootstrap, again, cwd=tmp_path)
    assert sorted(lines) == [f"shipped: order {n}" for n in range(5)]


class Endpoint(BaseHTTPRequestHandler):
    """An HTTP server. It fails the first call for a body, answers "busy" to the second, and always refuses `bad`."""

    calls: ClassVar[Counter[bytes]] = Counter()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.calls[body] += 1
        busy = self.calls[body] == 2
        self.send_response(400 if body == b"bad" else (503, 429, 200)[min(self.calls[body], 3) - 1])
        if busy:
            self.send_header("Retry-After", "0.2")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Write no log."""


def test_webhooks_are_delivered(broker: KafkaBroker, kafka: TemporaryKafka, name: str, tmp_path: Path) -> None:
    """Each body that the server accepts is delivered at the third attempt. A body that it refuses is tried once."""
    broker.create_topic(name)
    broker.publish([Message(name, body) for body in (b"one", b"two", b"bad")])
    Endpoint.calls.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Endpoint) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/"
        lines = run(EXAMPLES / "kafka_webhooks.py", kafka.bootstrap, address, name, 3, cwd=tmp_path)
        server.shutdown()
    assert sorted(lines) == ["bad: dead, 400", "one: 200 at attempt 3", "two: 200 at attempt 3"]
    assert Endpoint.calls == {b"one": 3, b"two": 3, b"bad": 1}


def test_the_commands(broker: KafkaBroker, kafka: TemporaryKafka, name: str, tmp_path: Path) -> None:
    """`init` creates absent topics, `doctor` then finds no problem, `lag` counts, and `replay` replays a dead letter
    once."""

    def wheel_sched(*words: str, code: int = 0) -> list[dict[str, object]]:
        start = ("-m", "wheel_sched.cli", "--kafka", kafka.bootstrap, "--namespace", name, "kafka")
        return [json.loads(line) for line in run(*start, *words, "--json", cwd=tmp_path, code=code)]

    (found,) = wheel_sched("doctor", name, code=1)
    assert found["healthy"] is False
    assert all(topic["created"] is False for topic in wheel_sched("init", name, "--partitions", "2", "--dry-run"))
    assert len([topic for topic in wheel_sched("init", name, "--partitions", "2") if topic["created"]]) == 4
    assert all(topic["existed"] for topic in wheel_sched("init", name))
    (found,) = wheel_sched("doctor", name)
    assert found["healthy"] is True
    headers = write((), RetryState(id="x", attempt=3, original_topic="orders", consumer_group=name))
    broker.publish([Message(dead_topic_of(name), b"letter", b"key", headers)])
    assert wheel_sched("replay", name, "--dry-run") == [{"dry_run": True, "waiting": 1}]
    connect(f"embedded:{tmp_path / '.wheel-sched'}", namespace=name).close()
    assert wheel_sched("replay", name, "--yes") == [{"replayed": 1, "guarded": 0}]
    assert wheel_sched("replay", name, "--yes")[0]["replayed"] == 0
    behind = sum(int(str(row["lag"])) for row in wheel_sched("lag", name) if row["group"] == name)
    assert behind >= 1  # one offset for the letter, and perhaps one for a transaction marker
    consumer = broker.consumer([redelivery_topic_of(name)], f"{name}-looker")
    (delivery,) = receive(consumer, 1)
    state = read(delivery.message.headers)
    assert (delivery.message.value, state.attempt, state.original_topic) == (b"letter", 0, "orders")

"""A connection to a real server, and the command line: run in this process or as a process of its own."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from retry_topic import Connection, Message, connect
from retry_topic.message.encoding import encode_body
from retry_topic.message.headers import RetryState, write
from tests.cli.running import WHEEL_SCHED, Cli, Program, isolate
from wheel_sched.store import Item


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(tmp_path, monkeypatch)


@pytest.fixture
def cli(redis_url: str) -> Cli:
    return Cli(redis_url)


@pytest.fixture
def connection(redis_url: str) -> Iterator[Connection]:
    with connect(redis_url) as opened:
        yield opened


def failed(
    attempt: int,
    *,
    topic: str = "orders",
    error: str = "shop.PaymentTimeout",
    message: str = "no answer",
    fingerprint: str = "aaaaaaaaaaaa",
    due_ms: int | None = None,
    key: bytes | None = None,
    value: bytes = b'{"id": 1}',
    root: str = "root",
) -> Message:
    """A message as the intake stores it after a failure."""
    state = RetryState(
        id=root,
        attempt=attempt,
        max_attempts=8,
        first_failed_ms=now_ms() - 60_000,
        last_failed_ms=now_ms() - 1_000,
        due_ms=due_ms,
        delay_ms=2_700,
        policy="default@1",
        original_topic=topic,
        original_partition=0,
        original_offset="7-0",
        consumer_group="billing",
        error_class=error,
        error_message=message,
        error_fingerprint=fingerprint,
    )
    return Message("billing.redelivery", value, key, write((("trace", b"t-1"),), state))


@pytest.fixture
def cli_at() -> type[Cli]:
    """Run the command line in this process, against the store at a given address."""
    return Cli


@pytest.fixture
def wait_for(connection: Connection) -> Callable[..., None]:
    """Return a function that stores a failed, waiting message. Its arguments are the id, `due_ms` and those of
    `failed`."""

    def wait(item_id: str, due_ms: int, **kwargs: Any) -> None:
        message = failed(2, due_ms=due_ms, **kwargs)
        connection.store.schedule([Item(item_id, due_ms, encode_body(message), kwargs.get("topic", "orders"))])

    return wait


@pytest.fixture
def bury(connection: Connection) -> Callable[..., None]:
    """Return a function that stores a dead letter. Its arguments are the id, the time of death in ms, and those of
    `failed`."""

    def put(item_id: str, died_ms: int | None = None, **kwargs: Any) -> None:
        message = failed(8, root=item_id, **kwargs)
        item = Item(item_id, died_ms or now_ms(), encode_body(message), kwargs.get("topic", "orders"))
        connection.store.bury([(item, f"max-attempts: {kwargs.get('error', 'shop.PaymentTimeout')}")])

    return put


@pytest.fixture
def wheel_sched(tmp_path: Path) -> Program:
    return Program(tmp_path)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Return a function that starts `wheel-sched` as a process. Each process is killed at the end of the test."""
    running: list[subprocess.Popen[bytes]] = []

    def start(*args: str) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        process = subprocess.Popen([WHEEL_SCHED, *args], cwd=tmp_path, stdin=pipe, stdout=pipe, stderr=pipe)
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()

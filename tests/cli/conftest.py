"""Fixtures: a store on a real server, and the core's command line. No test of this folder needs an extension."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.running import Cli, isolate
from wheel_sched.store import DelayStore, Item, open_store


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(tmp_path, monkeypatch)


@pytest.fixture
def cli(redis_url: str) -> Cli:
    return Cli(redis_url)


@pytest.fixture
def cli_at() -> type[Cli]:
    """Return the class whose instances run the command line in this process, against the store at a given address."""
    return Cli


@pytest.fixture
def opened(redis_url: str) -> Iterator[DelayStore]:
    """The store that the command line of `cli` uses."""
    with open_store(redis_url) as store:
        yield store


@pytest.fixture
def wait_for(opened: DelayStore) -> Callable[[str, int], None]:
    """Return a function that stores an item, given its id and its due time in ms."""

    def wait(item_id: str, due_ms: int) -> None:
        opened.schedule([Item(item_id, due_ms, b"body", "orders")])

    return wait


@pytest.fixture
def bury(opened: DelayStore) -> Callable[[str], None]:
    """Return a function that stores a dead letter with the given id."""

    def put(item_id: str) -> None:
        opened.bury([(Item(item_id, time.time_ns() // 1_000_000, b"body", "orders"), "max-attempts: 8")])

    return put

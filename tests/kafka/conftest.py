"""One real broker for the session; tests use topics and groups of their own, and do not kill it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

if TYPE_CHECKING:
    from wheel_sched.testing.kafka import TemporaryKafka


@pytest.fixture(scope="session")
def kafka() -> Iterator[TemporaryKafka]:
    """The session's broker."""
    from wheel_sched.testing.kafka import temporary_kafka

    with temporary_kafka() as kafka:
        yield kafka


@pytest.fixture
def name() -> str:
    """A name of this test's own, for topics, groups and namespaces."""
    return f"t{uuid4().hex[:10]}"


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group's rebalance takes seconds."""
    monkeypatch.setattr("retry_topic.brokers.conformance.PATIENCE_MS", 60_000)

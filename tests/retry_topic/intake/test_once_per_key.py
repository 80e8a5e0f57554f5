"""The intake with collapse and debounce: which retry of a key is sent, and how the other ones are reported."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from retry_topic import RetryPolicy
from retry_topic.history.latest import latest_attempts
from retry_topic.intake.from_queue import IntakeFromQueue
from retry_topic.message.headers import RetryState, write
from retry_topic.message.topic_names import dead_topic_of, retry_topic_of
from retry_topic.policy import PolicySet
from retry_topic.policy.key_source import KeySource
from retry_topic.policy.once_per_key import Collapse, Debounce

if TYPE_CHECKING:
    from conftest import Bench

    from retry_topic.intake.taken import Taken

Policy = Callable[..., RetryPolicy]
RETRY = retry_topic_of("billing")
HOUR_MS = 3_600_000
LOCK = f"{'s' * 12}.{'k' * 16}"  # the key lock of an ordering key
ORDER = KeySource("header", "order")
Take = Callable[..., "list[Taken]"]


@pytest.fixture
def take(bench: Bench, policy: Policy) -> Iterator[Callable[[RetryPolicy], Take]]:
    """Return a factory. For a `Collapse` or `Debounce` it makes a function that publishes retry records, takes them in
    together and returns the results."""
    consumers = []

    def made(once: Collapse | Debounce, **settings: int) -> Take:
        policies = PolicySet(policy(max_attempts=4, base_ms=HOUR_MS))
        field = "collapse" if isinstance(once, Collapse) else "debounce"
        policies = PolicySet(replace(policies.default, **{field: once}))
        intake = IntakeFromQueue(bench.connection, "billing", policies, history=100, **settings)
        bench.connection.broker.create_topic(dead_topic_of("billing"))
        consumer = bench.connection.broker.consumer([RETRY], "billing", idle_ms=60_000)
        consumers.append(consumer)

        def take_in(*records: tuple[str, bytes | None], **more: object) -> list[Taken]:
            for record_id, order in records:
                state = {"attempt": 1, "original_topic": "orders", "consumer_group": "billing", "id": record_id} | more
                headers = () if order is None else (("order", order),)
                bench.publish(b"m", topic=RETRY, headers=write(headers, RetryState(**state)))
            deliveries = []
            while len(deliveries) < len(records):
                deliveries += consumer.poll(100, 5_000)
            return intake.take(consumer, deliveries)

        return take_in

    yield made
    for consumer in consumers:
        consumer.close()


def waiting(bench: Bench) -> list[str]:
    return sorted(found.id for found in bench.connection.store.list_items("due").found)


def superseded(bench: Bench) -> list[tuple[str, int]]:
    rows = latest_attempts(bench.connection.store).rows
    return sorted((row.id, row.attempt) for row in rows if row.outcome == "superseded")


def test_collapse_drops_later_retries_of_a_key(
    bench: Bench, take: Callable[..., Take], caplog: pytest.LogCaptureFixture
) -> None:
    """The first retry waits. Later retries of its key are reported as superseded.

    Retries with another key or none wait as usual.
    """
    caplog.set_level(logging.INFO, "retry_topic.intake")
    take_in = take(Collapse(ORDER))
    taken = take_in(("a", b"7"), ("b", b"7"), ("c", b"8"), ("d", None), ("e", None))
    assert [one.superseded_by for one in taken] == [None, "a.1", None, None, None]
    assert taken[1].due_ms is None
    (later,) = take_in(("f", b"7"))
    assert later.superseded_by == "a.1"
    assert waiting(bench) == ["a.1", "c.1", "d.1", "e.1"]
    assert superseded(bench) == [("b", 1), ("f", 1)]
    lines = [line for line in caplog.messages if line.startswith("intake.superseded")]
    assert lines[0] == (
        "intake.superseded: message b.1 of orders is not retried: a.1 of the same key is retried in its place"
    )
    assert len(lines) == 2
    assert bench.connection.store.counts().ever["dropped", "orders"] == 2


def test_debounce_replaces_the_retry_that_waits(
    bench: Bench, take: Callable[..., Take], caplog: pytest.LogCaptureFixture
) -> None:
    """Only the last retry of a key waits.

    The retry before it is reported as superseded. In the history, this row replaces the row of its failure.
    """
    caplog.set_level(logging.INFO, "retry_topic.intake")
    take_in = take(Debounce(ORDER, 2 * HOUR_MS))
    take_in(("a", b"7"))
    assert superseded(bench) == []
    (taken,) = take_in(("b", b"7"))
    assert (taken.superseded_by, waiting(bench), superseded(bench)) == (None, ["b.1"], [("a", 1)])
    assert any("message a.1 of orders is not retried: b.1" in line for line in caplog.messages)


def test_messages_of_ordering_keys_are_never_dropped(
    bench: Bench, take: Callable[..., Take], caplog: pytest.LogCaptureFixture
) -> None:
    """The next message of an ordering key waits for the message before it, so none may be dropped. The intake does not
    apply the setting, and logs once what to change."""
    take_in = take(Collapse(ORDER))
    take_in(("a", b"7"), ("b", b"7"), key_lock=LOCK)
    take_in(("c", b"7"), key_lock=LOCK)
    assert len(waiting(bench)) == 3
    lines = [line for line in caplog.messages if line.startswith("intake.once_per_key_refused: orders is read in")]
    assert len(lines) == 1

"""The intake from a log, with a store in memory: its counts, the shards of its items, and its reports."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from retry_topic.brokers.memory import MemoryBroker
from retry_topic.brokers.protocol import Delivery, LogBatch, PublishFailure
from retry_topic.connection import Connection
from retry_topic.consumer.settling import Successes
from retry_topic.history import read_attempt
from retry_topic.intake.from_log import IntakeFromLog
from retry_topic.intake.taken import Taken
from retry_topic.message import Message, Source
from retry_topic.message.encoding import decode_body
from retry_topic.message.headers import RetryState, attempts_key, content_id, read, write
from retry_topic.policy import Fixed, PolicySet, RetryPolicy
from wheel_sched.store import AttemptCounts, Found, History, LogIntake, open_store

T = TypeVar("T")

SOURCE = "g.retry/0"


class Logs(MemoryBroker):
    """A memory broker with those methods of a log broker that an intake uses."""

    transactions = False

    def log_reader(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    def sender(self, *_: Any) -> None:
        return None


class Reader:
    """A reader that records its calls."""

    def __init__(self) -> None:
        self.position: int | None = None
        self.rewound: list[int | None] = []

    def poll(self, limit: int, timeout_ms: int) -> LogBatch | None:
        return None

    def done(self, part: LogBatch) -> None:
        self.position = part.next

    def rewind(self, source: str, position: int | None) -> None:
        self.rewound.append(position)

    def beat(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class Bench:
    """The intake of one group."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.reader = Reader()
        policies = PolicySet(RetryPolicy(delay=Fixed(base_ms=60_000), max_attempts=None))
        self.intake = IntakeFromLog(connection, "g", policies, history=100, rng=random.Random(1))

    def take(self, *states: RetryState, expected: int | None = None) -> list[Taken]:
        """Take in a batch of records with these headers. The batch begins at `expected`, which the reader takes for the
        stored position. None means the beginning."""
        start = expected or 0
        records = [
            Message("g.retry", b"v", None, write((), state), Source("g.retry", 0, str(start + n), 1))
            for n, state in enumerate(states)
        ]
        part = LogBatch(SOURCE, expected, start + len(records), [Delivery(record, None) for record in records])
        return self.intake.take(self.reader, part, once)

    def found(self, item_id: str) -> Found:
        (found,) = self.connection.store.get([item_id], anywhere=True)
        assert found is not None
        return found


def once(call: Callable[[], T]) -> T:
    return call()


def failed(name: str, attempt: int = 1, replays: int = 0) -> RetryState:
    return RetryState(id=name, attempt=attempt, replays=replays, original_topic="orders", error_class="E")


@pytest.fixture(params=[1, 4])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """The bench, once with one shard and once with four."""
    store = open_store("memory:", shards=request.param)
    with Connection(store, Logs()) as connection:
        yield Bench(connection)


def test_a_batch_is_stored_with_its_headers(bench: Bench) -> None:
    """Each record is stored with its id and the policy's decision. The stored position is after the last record."""
    taken = bench.take(failed("a"), failed("b", 3))
    assert [(one.id, one.attempt, one.duplicate) for one in taken] == [("a.1", 1, False), ("b.3", 3, False)]
    assert "attempt 3 of unlimited" in taken[1].why
    message = decode_body(bench.found("b.3").body)
    state = read(message.headers)
    assert (message.topic, state.attempt, state.policy, state.delay_ms) == ("g.redelivery", 3, "default@1", 60_000)
    assert (state.due_ms, state.consumer_group) == (taken[1].due_ms, "g")
    assert (bench.reader.position, LogIntake(bench.connection.store).positions([SOURCE])) == (2, [2])


def test_items_are_found_and_changed_wherever_their_source_put_them(bench: Bench) -> None:
    """Items are found by id in any shard. They are changed with the route that the search returned."""
    bench.take(*(failed(name) for name in "abcdef"))
    found: Sequence[Found] = [bench.found(f"{name}.1") for name in "abcdef"]
    assert {one.route for one in found} == {SOURCE if bench.connection.by_source else None}
    outcomes = [bench.connection.store.cancel([one.id], route=one.route)[0].name for one in found]
    assert outcomes == ["DONE"] * 6


TRACEBACK, ATTEMPTS, POLICY = "retry-traceback", "retry-failed-attempts", "retry-policy"


@pytest.mark.parametrize(
    ("refused", "kept"),
    [
        ((), {TRACEBACK, ATTEMPTS, POLICY}),
        ((TRACEBACK,), {ATTEMPTS, POLICY}),
        ((TRACEBACK, ATTEMPTS), {POLICY}),
        ((ATTEMPTS, POLICY), {TRACEBACK}),
    ],
)
def test_a_letter_that_the_dead_topic_refuses_gets_smaller(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, refused: tuple[str, ...], kept: set[str]
) -> None:
    """The dead topic refuses a letter as too large. The intake sends it again without its traceback, then without its
    failed attempts, and at last exactly as the record was read."""
    sent: list[set[str]] = []

    def publish(messages: Sequence[Message]) -> list[PublishFailure | None]:
        answers: list[PublishFailure | None] = []
        for message in messages:
            names = {name for name, _ in message.headers}
            large = not names.isdisjoint(refused)
            answers.append(PublishFailure("too large", transient=False) if large else None)
            sent.extend([] if large else [names])
        return answers

    monkeypatch.setattr(bench.connection.broker, "publish", publish)
    bench.connection.broker.create_topic("g.dead")
    bench.take(replace(failed("m"), verdict="dead", traceback="Traceback"))
    (names,) = sent
    assert names & {TRACEBACK, ATTEMPTS, POLICY} == kept


def test_no_header_lowers_a_count(bench: Bench) -> None:
    """The store remembers failures and replays of a message, whatever its headers say."""
    bench.take(failed("a", 5))
    bench.connection.store.cancel(["a.5"], route=bench.found("a.5").route)
    (again,) = bench.take(failed("a", 1), expected=1)
    assert again.id == "a.6"
    AttemptCounts(bench.connection.store).raise_to([("b!", 2, bench.connection.store.now_ms() + 60_000)])
    (replayed,) = bench.take(failed("b", 1), expected=2)
    assert replayed.id == "br2.1"
    (forged,) = bench.take(failed("c", 1, replays=9), expected=3)
    assert forged.id == "c.1"


def test_two_failures_of_one_attempt_are_one(bench: Bench) -> None:
    """Two copies of one delivery fail. The second record stores nothing, even after the next attempt was sent."""
    bench.take(replace(failed("a", 2), started_ms=1))
    bench.connection.store.cancel(["a.2"], route=bench.found("a.2").route)
    (copy,) = bench.take(replace(failed("a", 2), started_ms=2), expected=1)
    assert (copy.duplicate, bench.connection.store.get(["a.2", "a.3"], anywhere=True)) == (True, [None, None])
    (news,) = bench.take(replace(failed("a", 3), started_ms=3), expected=2)
    assert (news.id, news.duplicate) == ("a.3", False)


@pytest.mark.parametrize("attempt", [2, 3, 2_000])
def test_what_has_succeeded_is_neither_retried_nor_buried(bench: Bench, attempt: int) -> None:
    """A message that the store knows as succeeded is done, whatever attempt or verdict a failing copy reports."""
    bench.take(failed("a", 1))
    bench.connection.store.cancel(["a.1"], route=bench.found("a.1").route)
    Successes(bench.connection.store).remember([attempts_key(failed("a"), Message("g.retry", b"v"))])
    first, second = bench.take(failed("a", attempt), replace(failed("a", attempt), verdict="dead"), expected=1)
    assert (first.duplicate, second.duplicate) == (True, True)
    assert [bench.connection.store.counts().total(state) for state in ("due", "dead")] == [0, 0]


def test_records_that_nobody_signed_are_counted_by_the_store(bench: Bench) -> None:
    """With secrets, the store counts unsigned records by payload. Each record is one attempt, in one batch or in
    several."""
    bench.intake = IntakeFromLog(
        bench.connection, "g", PolicySet(RetryPolicy(delay=Fixed(base_ms=60_000), max_attempts=4)), secrets=(b"s" * 16,)
    )
    taken = bench.take(RetryState(), failed("a", 1), failed("a", 1)) + bench.take(RetryState(), expected=3)
    assert [(one.attempt, one.dead) for one in taken] == [(1, None), (2, None), (3, None), (4, "max-attempts")]
    assert len({one.id for one in taken}) == 4
    # our consumers report no success for such an id; if another client does, later records are duplicates
    ended = RetryState(id=content_id("g", b"v", None))
    Successes(bench.connection.store).remember([attempts_key(ended, Message("g.retry", b"v"))])
    assert bench.take(RetryState(), expected=4)[0].duplicate


def test_one_failure_twice_in_a_batch_is_one(bench: Bench) -> None:
    """The second record of one failure in a batch is reported as a duplicate."""
    first, second = bench.take(failed("a"), failed("a"))
    assert (first.duplicate, second.duplicate, second.why) == (False, True, "the failure was already known")


def test_a_batch_from_elsewhere_is_read_again_from_where_the_store_is(bench: Bench) -> None:
    """A batch that does not begin at the stored position is not stored. The reader goes back to the stored position."""
    bench.take(failed("a"))
    assert bench.take(failed("b"), expected=7) == []
    assert bench.reader.rewound == [1]
    assert bench.connection.store.get(["b.1"], anywhere=True) == [None]


def test_the_history_has_a_row_for_each(bench: Bench) -> None:
    """Each record leaves a row in the attempt history. The row has no shard if the record's source chose the shard."""
    bench.take(failed("a", 2), failed("b", 1))
    logged = [History(bench.connection.store).read(shard) for shard in range(bench.connection.store.shards)]
    rows = {row.id: row for page in logged for row in (read_attempt(entry) for entry in page.entries)}
    assert {name: (row.attempt, row.outcome) for name, row in rows.items()} == {"a": (2, "failed"), "b": (1, "failed")}
    assert rows["a"].shard == (None if bench.connection.by_source else 0)

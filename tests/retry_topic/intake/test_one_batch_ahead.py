"""The intake reads the next log batch while another one is in flight. In most of these tests, something fails between
the two."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, TypeVar
from uuid import uuid4

import pytest

from retry_topic.brokers.memory import MemoryBroker
from retry_topic.brokers.protocol import Delivery, LogBatch
from retry_topic.connection import Connection
from retry_topic.intake.from_log import IntakeFromLog
from retry_topic.intake.taken import Taken
from retry_topic.message import Message, Source
from retry_topic.message.headers import RetryState, attempts_key, write
from retry_topic.message.topic_names import dead_topic_of
from retry_topic.policy import PolicySet, RetryPolicy
from tests.servers.faulty_proxy import FaultyProxy
from tests.servers.valkey import TemporaryServer
from wheel_sched.errors import StoreUnavailable
from wheel_sched.store import AttemptCounts, DelayStore, LogIntake, open_store

T = TypeVar("T")


class Logs(MemoryBroker):
    """A memory broker with those methods of a log broker that an intake uses."""

    transactions = False

    def log_reader(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    def sender(self, *_: Any) -> None:
        return None


class Log:
    """A partition of failed messages, and a member that reads it from a given position."""

    def __init__(self, *states: RetryState, source: str = "g.retry/0", traced: bool = False) -> None:
        self.source = source
        self.records = [
            Message(
                "g.retry",
                b"v",
                b"k",
                write((("trace", b"%d" % n),) if traced else (), state),
                Source("g.retry", 0, str(n), 1),
            )
            for n, state in enumerate(states)
        ]
        self.place: int | None = None
        self.rewound: list[int | None] = []
        self.reported: list[int] = []
        self.mine = True

    def poll(self, limit: int, timeout_ms: int = 0) -> LogBatch | None:
        start = self.place or 0
        records = self.records[start : start + limit]
        if not records:
            return None
        part = LogBatch(self.source, self.place, start + len(records), [Delivery(one, None) for one in records])
        self.place = part.next
        return part

    def expected(self) -> dict[str, int]:
        return {} if self.place is None else {self.source: self.place}

    def next(self, limit: int) -> LogBatch:
        """Return the next batch, which must exist."""
        part = self.poll(limit)
        assert part is not None
        return part

    def done(self, part: LogBatch) -> None:
        if self.mine:
            self.reported.append(part.next)

    def rewind(self, source: str, position: int | None) -> None:
        assert source == self.source
        self.rewound.append(position)
        self.place = position

    def beat(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def failed(name: str, attempt: int = 1, **more: Any) -> RetryState:
    return RetryState(id=name, attempt=attempt, original_topic="orders", error_class="E", error_message="no", **more)


def once(call: Callable[[], T]) -> T:
    return call()


def intake(connection: Connection, **policy: Any) -> IntakeFromLog:
    return IntakeFromLog(connection, "g", PolicySet(RetryPolicy(max_attempts=None, **policy)), rng=random.Random(1))


def drain(taking: IntakeFromLog, log: Log, limit: int = 2, insist: Any = once) -> list[Taken]:
    """Take in the whole log as the service does: read the next batch while one is in flight."""
    taken = []
    while (part := log.poll(limit)) is not None or taking.busy:
        taken += taking.finish(insist) if part is None else taking.offer(log, part, insist)
    return taken


def waiting(store: DelayStore) -> list[str]:
    return sorted(found.id for found in store.list_items("due", limit=1_000).found)


@pytest.fixture(params=[1, 4])
def connection(request: pytest.FixtureRequest) -> Iterator[Connection]:
    """A connection to a store in memory, once with one shard and once with four."""
    with Connection(open_store("memory:", shards=request.param), Logs()) as connection:
        yield connection


def test_a_batch_is_told_when_the_next_is_offered(connection: Connection) -> None:
    """At most one batch is in flight. Its results are returned when the next batch is offered, after the store has
    answered."""
    taking, log = intake(connection), Log(failed("a"), failed("b"), failed("c"))
    assert (taking.busy, taking.finish(once)) == (False, [])
    assert (taking.offer(log, log.next(2), once), log.reported, taking.busy) == ([], [], True)
    assert [one.id for one in taking.offer(log, log.next(2), once)] == ["a.1", "b.1"]
    assert (log.reported, taking.busy) == ([2], True)
    assert [one.id for one in taking.finish(once)] == ["c.1"]
    assert (log.reported, taking.busy, waiting(connection.store)) == ([2, 3], False, ["a.1", "b.1", "c.1"])


def test_a_stale_position_takes_the_next_batch_with_it(connection: Connection) -> None:
    """Another member has already taken in the first batch. The first batch and the batch after it are dropped, and the
    reader continues at the stored position."""
    states = [failed(name) for name in "abcdef"]
    zombie, log = Log(*states), Log(*states)
    drain(intake(connection), log, limit=3)
    taking = intake(connection)
    taking.offer(zombie, zombie.next(2), once)
    assert taking.offer(zombie, zombie.next(2), once) == []
    assert (zombie.rewound, taking.busy, zombie.reported) == ([6], False, [])
    assert (drain(taking, zombie), waiting(connection.store)) == ([], [f"{name}.1" for name in "abcdef"])


def test_a_stale_position_leaves_other_sources_alone(connection: Connection) -> None:
    """A batch that does not begin at the stored position is dropped. The next batch, of another partition, is
    stored."""
    taking, log, other = intake(connection), Log(failed("a")), Log(failed("b"), source="g.retry/1")
    log.place = 0  # the store has no position of this partition
    taking.offer(log, log.next(1), once)
    taking.offer(other, other.next(1), once)
    taking.finish(once)
    assert (log.rewound, other.reported, waiting(connection.store)) == ([None], [1], ["b.1"])


def test_a_store_that_fell_back_gets_both_batches_again(connection: Connection) -> None:
    """The store has lost its last writes. The reader goes back to the stored position, and every record is taken in."""
    taking, log = intake(connection), Log(*(failed(name) for name in "abcd"))
    log.place = 2  # the position that the store answered before it lost writes
    assert taking.offer(log, log.next(1), once) == []
    assert taking.offer(log, log.next(1), once) == []
    assert log.rewound == [None]
    assert [one.id for one in drain(taking, log)] == ["a.1", "b.1", "c.1", "d.1"]


def test_a_partition_lost_between_the_two_is_taken_on_by_another_member(connection: Connection) -> None:
    """A member loses its partition. Its batch in flight is stored, and another member stores the next batch. Each
    record is taken in once."""
    states = [failed(name) for name in "abcdef"]
    mine, theirs = Log(*states), Log(*states)
    taking = intake(connection)
    taking.offer(mine, mine.next(2), once)
    read = mine.next(2)
    mine.mine = False
    (theirs.place,) = LogIntake(connection.store).positions([theirs.source])
    taken = [*drain(intake(connection), theirs), *taking.offer(mine, read, once), *taking.finish(once)]
    assert sorted(one.id for one in taken) == [f"{name}.1" for name in "abcdef"]
    assert (mine.rewound, mine.reported) == ([6], [])
    assert waiting(connection.store) == [f"{name}.1" for name in "abcdef"]


def test_a_process_that_dies_with_one_in_flight_leaves_it_taken_in_once(connection: Connection) -> None:
    """A process dies while a batch is in flight. The next process continues at the stored position. Each record is
    taken in once."""
    states = [failed(name) for name in "abcdef"]
    dying, log = Log(*states), Log(*states)
    taking = intake(connection)
    taking.offer(dying, dying.next(2), once)
    taking.offer(dying, dying.next(2), once)  # the process dies now
    del taking
    (log.place,) = LogIntake(connection.store).positions([log.source])
    again = [one.id for one in drain(intake(connection), log)]
    assert len(again) == len(set(again))
    assert waiting(connection.store) == [f"{name}.1" for name in "abcdef"]


def test_no_header_lowers_a_count_that_came_with_the_batch_before(connection: Connection) -> None:
    """The intake plans the second batch before the first batch has raised the message's count. Then it plans the second
    batch again."""
    states = [failed("a", 5), failed("b", 2), failed("a", 1), failed("c")]
    taking, log = intake(connection), Log(*states, traced=True)
    taken = drain(taking, log)
    assert [one.id for one in taken] == ["a.5", "b.2", "a.6", "c.1"]
    assert "attempt 6 of unlimited" in taken[2].why
    keys = [attempts_key(RetryState(id=name), Message("g.retry", b"v", b"k")) for name in "ab"]
    assert AttemptCounts(connection.store).raise_to([(key, 0, 0) for key in keys]) == [6, 2]


def test_a_failure_told_again_in_the_batch_behind_is_no_second_one(connection: Connection) -> None:
    """A consumer wrote one record twice, at the end of one batch and at the start of the next. The second is a
    duplicate."""
    taken = drain(intake(connection), Log(failed("a"), failed("b"), failed("b"), failed("c")))
    assert [(one.id, one.duplicate) for one in taken] == [("a.1", False), ("b.1", False), ("b.1", True), ("c.1", False)]
    assert waiting(connection.store) == ["a.1", "b.1", "c.1"]


def test_the_dead_of_a_batch_told_again_are_told_once(connection: Connection) -> None:
    """A dead letter that is in two batches is stored, reported and sent to the dead topic once."""
    connection.broker.create_topic(dead_topic_of("g"))
    fatal = failed("a", verdict="dead")
    taken = drain(intake(connection), Log(fatal, failed("b"), fatal, failed("c")))
    assert [one.dead for one in taken] == ["verdict", None, None, None]
    assert connection.broker.topics()[dead_topic_of("g")] == 1
    assert [found.id for found in connection.store.list_items("dead").found] == ["a.1"]


def test_looking_back_waits_for_the_batch_in_flight(connection: Connection) -> None:
    """`look_back` first finishes the batch in flight. If the store then has the expected position, nothing is read
    again."""
    taking, log = intake(connection), Log(failed("a"), failed("b"))
    taking.offer(log, log.next(1), once)
    taking.look_back(log, once)
    assert (log.rewound, log.reported, taking.busy) == ([], [1], False)
    log.place = 9
    taking.look_back(log, once)
    assert log.rewound == [1]


def test_whoever_gives_up_waiting_is_no_longer_busy(connection: Connection) -> None:
    """A service stops while the store does not answer. Afterwards the stored position decides what is read again."""

    def gives_up(call: Callable[[], T]) -> T:
        raise StoreUnavailable("away")

    taking, log = intake(connection), Log(failed("a"), failed("b"))
    taking.offer(log, log.next(1), once)
    with pytest.raises(StoreUnavailable):
        taking.finish(gives_up)
    assert (taking.busy, log.reported) == (False, [])
    log.place = 0  # a new reader begins with a wrong position
    drain(taking, log)
    assert (len(log.rewound), waiting(connection.store)) == (1, ["a.1", "b.1"])


@pytest.mark.real
@pytest.mark.parametrize("lost", [0, 1, 2, 3])
def test_a_lost_reply_doubles_nothing(real_server: TemporaryServer, lost: int) -> None:
    """The store's reply for one batch is lost while the intake reads the next batch. The repeated call gets the answer
    of the first call, and nothing is stored twice."""
    states = [failed(str(n)) for n in range(12)]
    failures: list[Exception] = []

    def insist(call: Callable[[], T]) -> T:
        while True:
            try:
                return call()
            except StoreUnavailable as error:
                failures.append(error)

    with FaultyProxy(real_server.url) as proxy:
        connection = Connection(open_store(proxy.url, namespace=f"n{uuid4().hex[:8]}"), Logs())
        with connection:
            taking, log = intake(connection), Log(*states)
            taken = []
            for number in range(4):
                if number == lost:
                    proxy.drop_next_reply(b"g.retry/0")
                taken += taking.offer(log, log.next(3), insist)
            taken += taking.finish(insist)
            assert proxy.counts.dropped_replies == 1
            assert [one.id for one in taken] == [f"{n}.1" for n in range(12)]
            assert (log.rewound, log.reported) == ([], [3, 6, 9, 12])
            assert connection.store.counts().happened("accepted") == 12
            assert waiting(connection.store) == sorted(f"{n}.1" for n in range(12))

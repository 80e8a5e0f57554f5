"""Log batches with ids that belong to other messages: each record is stored, and the other messages do not change."""

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
from retry_topic.message import Message, Source
from retry_topic.message.encoding import decode_body, encode_body
from retry_topic.message.headers import RetryState, retry_id, write
from retry_topic.message.topic_names import dead_topic_of
from retry_topic.policy import Fixed, PolicySet, RetryPolicy
from tests.servers.valkey import TemporaryServer
from wheel_sched.store import DelayStore, Item, LogIntake, open_store

T = TypeVar("T")

SOURCE = "g.retry/0"
FAR_MS = 4_000_000_000_000


class Died(BaseException):
    """Raised in place of a call: the process has died."""


class Logs(MemoryBroker):
    """A memory broker with those methods of a log broker that an intake uses."""

    transactions = False

    def log_reader(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    def sender(self, *_: Any) -> None:
        return None


class Log:
    """A partition of failed messages, read from the stored position."""

    def __init__(self, *states: RetryState) -> None:
        self.records = [
            Message("g.retry", b"%d" % n, b"k", write((), state), Source("g.retry", 0, str(n), 1))
            for n, state in enumerate(states)
        ]
        self.place: int | None = None

    def poll(self, limit: int, timeout_ms: int = 0) -> LogBatch | None:
        start = self.place or 0
        records = self.records[start : start + limit]
        if not records:
            return None
        part = LogBatch(SOURCE, self.place, start + len(records), [Delivery(one, None) for one in records])
        self.place = part.next
        return part

    def expected(self) -> dict[str, int]:
        return {} if self.place is None else {SOURCE: self.place}

    def done(self, part: LogBatch) -> None:
        """Do nothing."""

    def rewind(self, source: str, position: int | None) -> None:
        self.place = position

    def beat(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class Dying:
    """A backend that dies at call number `last`. With `heard`, the server executes that call before."""

    def __init__(self, backend: Any, last: int, *, heard: bool) -> None:
        self._backend, self._left, self._heard = backend, last, heard
        self.dead = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def _call(self, call: Callable[[], T]) -> T:
        if self.dead:
            raise Died
        self._left -= 1
        self.dead = self._left < 0
        if self.dead and not self._heard:
            raise Died
        answer = call()
        if self.dead:
            raise Died
        return answer

    def execute(self, *arguments: Any) -> Any:
        return self._call(lambda: self._backend.execute(*arguments))

    def begin(self, *arguments: Any) -> Any:
        return self._call(lambda: self._backend.begin(*arguments))


def once(call: Callable[[], T]) -> T:
    return call()


def failed(name: str | None, attempt: int = 1, **more: Any) -> RetryState:
    return RetryState(id=name, attempt=attempt, original_topic="orders", error_class="E", error_message="no", **more)


def intake(connection: Connection) -> IntakeFromLog:
    policy = RetryPolicy(delay=Fixed(base_ms=3_600_000), max_attempts=None)
    return IntakeFromLog(connection, "g", PolicySet(policy), rng=random.Random(1))


def drain(connection: Connection, log: Log, limit: int = 3) -> None:
    """Take in the whole log from the stored position on, as a service does after its start."""
    (log.place,) = LogIntake(connection.store).positions([SOURCE])
    taking = intake(connection)
    while (part := log.poll(limit)) is not None or taking.busy:
        taking.finish(once) if part is None else taking.offer(log, part, once)


def stand_in_the_way(connection: Connection, *ids: str) -> None:
    """Store other messages under these ids, in the log's shard."""
    body = encode_body(Message("orders", b"another"))
    route = SOURCE if connection.by_source else None
    connection.store.schedule([Item(one, FAR_MS, body, "orders", route=route) for one in ids])


def values(store: DelayStore, state: Any = "due") -> list[bytes]:
    return sorted(decode_body(found.body).value for found in store.list_items(state, limit=1_000).found)


@pytest.fixture(params=[1, 4])
def connection(request: pytest.FixtureRequest) -> Iterator[Connection]:
    """A connection to a store in memory, once with one shard and once with four."""
    with Connection(open_store("memory:", shards=request.param), Logs()) as connection:
        connection.broker.create_topic(dead_topic_of("g"))
        yield connection


def own_id(offset: int) -> str:
    """The id that is made from the place of the record at `offset`."""
    return retry_id("g", "g.retry", 0, str(offset))


def test_what_has_a_taken_id_gets_one_of_its_own(connection: Connection) -> None:
    """A record has the id of an earlier message. It is stored under an id made from its place, and the earlier message
    does not change."""
    stand_in_the_way(connection, "b.1")
    drain(connection, Log(failed("a"), failed("b"), failed("c")))
    assert values(connection.store) == [b"0", b"1", b"2", b"another"]
    (first, renamed) = connection.store.get(["b.1", f"{own_id(1)}.1"], anywhere=True)
    assert first is not None
    assert renamed is not None
    assert (decode_body(first.body).value, decode_body(renamed.body).value) == (b"another", b"1")


def test_a_dead_letter_with_a_taken_id_is_kept_as_well(connection: Connection) -> None:
    """A dead letter has the id of an earlier message. It is stored under an id made from its place. The other records
    of its batch are stored too."""
    stand_in_the_way(connection, "b.1")
    drain(connection, Log(failed("a"), failed("b", verdict="dead"), failed("c")))
    assert (values(connection.store), values(connection.store, "dead")) == ([b"0", b"2", b"another"], [b"1"])
    assert connection.broker.topics()[dead_topic_of("g")] >= 1


def test_what_is_there_already_is_left_out(connection: Connection) -> None:
    """The message of a record already waits in the store, although the store has no attempt count for it. The message
    is not stored twice."""
    log = Log(failed("a"), failed("b"))
    drain(connection, log)
    (found,) = connection.store.get(["a.1"], anywhere=True)
    assert found is not None
    with Connection(open_store("memory:", shards=connection.store.shards), Logs()) as other:
        other.store.schedule([Item("a.1", FAR_MS, found.body, "orders", route=SOURCE if other.by_source else None)])
        drain(other, log)
        assert values(other.store) == [b"0", b"1"]


def test_who_knows_how_ids_are_made_displaces_nobody(connection: Connection) -> None:
    """A record claims the id that is made from a later record's place. All records are stored."""
    stand_in_the_way(connection, f"{own_id(5)}.1")
    forged = [failed(own_id(n)) for n in (2, 4)]
    drain(connection, Log(forged[0], failed("a"), failed(None), forged[1], failed(None), failed(None)))
    assert values(connection.store) == [b"0", b"1", b"2", b"3", b"4", b"5", b"another"]


def deaths(open_connection: Callable[[], Connection], *, heard: bool) -> int:
    """Let the intake die at each of its calls in turn, and another one continue. Return the number of deaths."""
    states = [failed("a"), failed("b"), failed("c", verdict="dead"), failed("d"), failed("e"), failed("b", 2)]
    for last in range(100):
        with open_connection() as connection:
            connection.broker.create_topic(dead_topic_of("g"))
            stand_in_the_way(connection, "b.1", "c.1", "e.1")
            living = connection.store.backend
            connection.store.backend = dying = Dying(living, last, heard=heard)
            log = Log(*states)
            try:
                drain(connection, log)
            except Died:
                connection.store.backend = living
                drain(connection, log)
            connection.store.backend = living
            assert values(connection.store) == [b"0", b"1", b"3", b"4", b"5", *[b"another"] * 3], f"died at call {last}"
            assert values(connection.store, "dead") == [b"2"], f"died at call {last}"
            if not dying.dead:
                return last
    raise AssertionError("the intake did not end")


@pytest.mark.parametrize("heard", [False, True])
@pytest.mark.parametrize("shards", [1, 4])
def test_a_death_at_any_call_loses_and_doubles_nothing(shards: int, heard: bool) -> None:
    """The intake dies at each of its calls, also between the refusal of a batch and the second attempt to store it. No
    record is lost or stored twice."""
    assert deaths(lambda: Connection(open_store("memory:", shards=shards), Logs()), heard=heard) > 8


@pytest.mark.real
@pytest.mark.parametrize("heard", [False, True])
def test_a_death_at_any_call_to_a_server(real_server: TemporaryServer, heard: bool) -> None:
    """With a real server too, an intake that dies at any of its calls loses and doubles nothing."""
    assert (
        deaths(lambda: Connection(open_store(real_server.url, namespace=f"n{uuid4().hex[:8]}"), Logs()), heard=heard)
        > 8
    )

"""Replays and deletions of dead letters as durable operations: they change each counted letter once and account for
all.
"""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from retry_topic import Connection, DeadLetterFilter, DeadLetters, Message, connect
from retry_topic.dead_letters.loop_guard import count_replays
from retry_topic.management import dead_letter_operations as module
from retry_topic.management.dead_letter_operations import (
    DELETE,
    REPLAY,
    DeleteDeadLetters,
    ReplayDeadLetters,
)
from retry_topic.message.encoding import decode_body, encode_body
from retry_topic.message.headers import RetryState, read, sign, write
from wheel_sched.errors import Rejected
from wheel_sched.management.operations import DurableOperation, OperationBatch, OperationBook, OperationRunner
from wheel_sched.store import Item

if TYPE_CHECKING:
    from conftest import Bench

SECRET = b"sixteen bytes ok"
PROCESS = Path(__file__).parent / "processes" / "run_operations.py"


def bury(
    connection: Connection,
    count: int,
    name: str = "a",
    print_: str = "aaa",
    topic: str = "orders",
    secret: bytes | None = None,
) -> list[str]:
    """Store dead letters as the intake does. Returns their ids."""
    store, letters = connection.store, []
    for number in range(count):
        state = RetryState(
            id=f"{name}{number}",
            attempt=3,
            original_topic=topic,
            original_offset=f"{number}",
            consumer_group="billing",
            error_class="builtins.ValueError",
            error_message=f"text of {number}",
            error_fingerprint=print_,
        )
        message = Message(topic, b"1", None, ())
        state = sign(state, message, secret) if secret else state
        body = encode_body(message.to(topic, write((), state)))
        item = Item(f"{name}{number}.3", store.now_ms() - 10, body, topic, (f"fp:{print_}",))
        letters.append((item, "max-attempts: builtins.ValueError"))
    for at in range(0, count, 500):
        store.bury(letters[at : at + 500])
    return [item.id for item, _ in letters]


class Operations:
    """Runs operations step by step."""

    def __init__(self, connection: Connection, secrets: tuple[bytes, ...] = ()) -> None:
        self.connection = connection
        self.book = OperationBook(connection.store)
        kinds = [ReplayDeadLetters(connection, lambda: secrets), DeleteDeadLetters(connection)]
        self.runner = OperationRunner(connection.store, kinds)

    def until(self, operation_id: str, holds: Callable[[DurableOperation], bool]) -> DurableOperation:
        until_s = time.monotonic() + 60
        while time.monotonic() < until_s:
            found = self.book.get(operation_id)
            assert found is not None
            if holds(found):
                return found
            if self.runner.run_once():
                time.sleep(0.01)  # waits for the lease of a dead process, or for the rate
        raise AssertionError(found)

    def counted(self, kind: str, arguments: dict[str, str], **more: Any) -> DurableOperation:
        made = self.book.create(kind, arguments, "ada", **more)
        return self.until(made.id, lambda found: found.state != "counting")

    def ended(self, ready: DurableOperation) -> DurableOperation:
        if ready.state == "ready":
            self.book.confirm(ready.id, "bob", ready.version)
        done = self.until(ready.id, lambda found: not found.is_open)
        assert done.handled == done.matched
        return done


@pytest.fixture
def operations(bench: Bench) -> Operations:
    return Operations(bench.connection)


GROUP = {"topic": "orders", "group": "aaa"}


def replays(connection: Connection) -> dict[str, int]:
    """How often each waiting message was replayed, by its headers."""
    found: dict[str, int] = {}
    cursor = None
    while True:
        page = connection.store.list_items("due", limit=500, cursor=cursor)
        found.update((one.id, read(decode_body(one.body).headers).replays) for one in page.found)
        cursor = page.cursor
        if cursor is None:
            return found


def test_a_replay_takes_exactly_the_letters_of_its_group(operations: Operations) -> None:
    """Letters of other groups and other topics stay dead."""
    connection = operations.connection
    ids = bury(connection, 250)
    others = [*bury(connection, 5, "b", "bbb"), *bury(connection, 5, "c", topic="payments")]
    ready = operations.counted(REPLAY, GROUP)
    assert (ready.matched, len(ready.samples)) == (250, 5)
    assert "ValueError: text of" in ready.samples[0]
    done = operations.ended(ready)
    assert (done.done, dict(done.left)) == (250, {})
    assert replays(connection) == dict.fromkeys(ids, 1)
    assert sorted(letter.id for letter in DeadLetters(connection).select()) == sorted(others)


def test_a_search_chooses_letters_too(operations: Operations) -> None:
    bury(operations.connection, 30)
    done = operations.ended(operations.counted(REPLAY, {"search": 'topic:orders "text of 2"'}))
    assert (done.matched, done.done) == (11, 11)


def test_a_letter_that_dies_again_is_not_replayed_again(operations: Operations) -> None:
    """If a letter dies again after the operation was made, it stays dead. So the operation replays no letter twice."""
    connection, store = operations.connection, operations.connection.store
    bury(connection, 120)
    ready = operations.counted(REPLAY, GROUP, rate=100.0)
    operations.book.confirm(ready.id, "bob", ready.version)
    operations.until(ready.id, lambda found: found.done >= 100)
    assert store.cancel([one.id for one in store.list_items("due", limit=500).found])
    died_again = bury(connection, 50, "again")
    done = operations.ended(operations.book.get(ready.id) or ready)
    assert (done.done, len(replays(connection))) == (120, 20)
    assert {letter.id for letter in DeadLetters(connection).select()} >= set(died_again[:1])


def test_what_others_have_done_meanwhile_is_left_and_counted(operations: Operations) -> None:
    """Letters that somebody else has replayed or deleted meanwhile are not replayed, nor are letters that were replayed
    too often. Both are counted by reason."""
    connection = operations.connection
    ids = bury(connection, 10)
    ready = operations.counted(REPLAY, GROUP)
    letters = DeadLetters(connection)
    letters.replay(DeadLetterFilter(ids=frozenset(ids[:2])))
    letters.delete(DeadLetterFilter(ids=frozenset(ids[2:5])))
    count_replays(connection.store, [("a9", 3)], connection.store.now_ms())
    done = operations.ended(ready)
    assert (done.done, done.left) == (4, {"gone meanwhile": 5, "replayed too often before": 1})


def test_a_letter_that_changes_within_a_batch_is_left(operations: Operations, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a batch is planned and before it is carried out, somebody else replays two of its letters. They are not
    replayed twice."""
    connection = operations.connection
    ids = bury(connection, 10)
    ready = operations.counted(REPLAY, GROUP)
    perform = ReplayDeadLetters.perform

    def raced(self: ReplayDeadLetters, *args: Any, **more: Any) -> Any:
        DeadLetters(connection).replay(DeadLetterFilter(ids=frozenset(ids[:2])))
        return perform(self, *args, **more)

    monkeypatch.setattr(ReplayDeadLetters, "perform", raced)
    done = operations.ended(ready)
    assert (done.done, done.left) == (8, {"in another state meanwhile": 2})
    assert set(replays(connection).values()) == {1}


@pytest.mark.parametrize("kind", [REPLAY, DELETE])
def test_a_letter_that_has_died_again_within_a_batch_is_left(
    operations: Operations, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """After a batch is planned and before it is carried out, one of its letters is replayed and dies again. It has the
    same id and the same version as before, and is not changed."""
    connection, store = operations.connection, operations.connection.store
    ids = bury(connection, 3)
    ready = operations.counted(kind, GROUP)
    changed = ReplayDeadLetters if kind == REPLAY else DeleteDeadLetters
    perform = changed.perform

    def raced(self: Any, *args: Any, **more: Any) -> Any:
        DeadLetters(connection).replay(DeadLetterFilter(ids=frozenset(ids[:1])))
        assert store.cancel(ids[:1])
        before, until_s = store.now_ms(), time.monotonic() + 10
        while store.now_ms() <= before + 20 and time.monotonic() < until_s:  # `bury` sets its times 10 ms back
            time.sleep(0.001)
        bury(connection, 1)
        return perform(self, *args, **more)

    monkeypatch.setattr(changed, "perform", raced)
    done = operations.ended(ready)
    assert (done.done, done.left) == (2, {"changed meanwhile": 1})
    assert [letter.id for letter in DeadLetters(connection).select()] == ids[:1]


def test_a_deletion_removes_exactly_its_letters(operations: Operations) -> None:
    bury(operations.connection, 230)
    bury(operations.connection, 3, "b", "bbb")
    done = operations.ended(operations.counted(DELETE, GROUP))
    assert (done.done, operations.connection.store.counts().total("dead")) == (230, 3)


def test_signed_letters_without_a_secret_fail_before_anything_changes(bench: Bench) -> None:
    bury(bench.connection, 3, secret=SECRET)
    failed = Operations(bench.connection).counted(REPLAY, GROUP)
    assert failed.state == "failed"
    assert "none was replayed" in failed.error
    assert len(DeadLetters(bench.connection).groups()) == 1
    done = Operations(bench.connection, (SECRET,))
    assert done.ended(done.counted(REPLAY, GROUP)).done == 3


def test_the_due_times_keep_the_rate(operations: Operations) -> None:
    """At 50 a second, the letters of a batch are due 20 ms apart."""
    bury(operations.connection, 20)
    operations.ended(operations.counted(REPLAY, GROUP, rate=50.0))
    due = [one.score_ms for one in operations.connection.store.list_items("due", limit=500).found]
    assert [after - before for before, after in itertools.pairwise(due)] == [20] * 19


def test_a_late_successor_finds_out_what_was_replayed(operations: Operations) -> None:
    """The store no longer remembers the first call. A letter that is gone, and whose replay was counted, counts as
    done."""
    connection = operations.connection
    ids = bury(connection, 6)
    kind = ReplayDeadLetters(connection)
    plan = kind.plan(GROUP, connection.store.now_ms() + 1, None, 100)
    batch = OperationBatch(1, 0, 0.0, plan.entries)
    assert kind.perform(GROUP, batch, "first", remembered=True).done == 6
    bury(connection, 1, "z")
    again = kind.perform(GROUP, batch, "other-token", remembered=False)
    assert (again.done, dict(again.left)) == (6, {})
    assert replays(connection) == dict.fromkeys(ids, 1)


def test_the_longest_ids_fit_into_the_record(operations: Operations) -> None:
    """With the longest ids a batch has fewer letters, so its record is not too large. A letter whose id is too long for
    counting replays is not replayed.
    """
    connection, store = operations.connection, operations.connection.store
    body = encode_body(Message("orders", b"1", None, write((), RetryState(original_topic="orders"))))
    names = [f"{number:04}" + "ü" * 240 for number in range(90)] + ["\udcff", "x" * 512]
    store.bury([(Item(name, store.now_ms() - 10, body, "orders", ("fp:aaa",), name), "max-attempts") for name in names])
    done = operations.ended(operations.counted(REPLAY, GROUP))
    assert (done.state, done.done, done.error) == ("done", 91, "")
    assert done.left == {"with an id too long for counting replays": 1}
    assert sorted(replays(connection)) == names[:91]


@pytest.mark.parametrize("arguments", [{}, {"topic": "orders"}, {"search": "state:due"}, {"search": "attempt>x"}])
def test_arguments_that_mean_no_letters_are_refused(memory: Bench, arguments: dict[str, str]) -> None:
    with pytest.raises(Rejected, match=r"nothing was (changed|searched)"):
        ReplayDeadLetters(memory.connection).count(arguments, 1, None)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("point", ["planned", "counted", "changed"])
@pytest.mark.parametrize("shards", [1, 3])
def test_a_killed_process_leaves_an_operation_that_another_one_finishes(
    redis_url: str, point: str, shards: int
) -> None:
    """The runner's process is killed before, during or after a change. Each letter is replayed and counted once."""
    with connect(redis_url, shards=shards) as connection:
        operations = Operations(connection)
        ids = bury(connection, 1_500)
        ready = operations.counted(REPLAY, GROUP)
        assert ready.matched == 1_500
        operations.book.confirm(ready.id, "bob", ready.version)
        command = [sys.executable, str(PROCESS), redis_url, str(shards), point]
        killed = subprocess.run(command, timeout=60)
        assert killed.returncode == -signal.SIGKILL
        left = operations.book.get(ready.id)
        assert left is not None
        assert left.batch is not None
        assert left.batches == 3
        done = operations.ended(left)
        assert (done.state, done.done, dict(done.left)) == ("done", 1_500, {})
        assert replays(connection) == dict.fromkeys(ids, 1)
        assert connection.store.counts().happened("requeued") == 1_500


def test_few_letters_are_found_by_their_fingerprint_and_many_by_a_search(
    operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The letters of a small group are found by fingerprint, those of a large group by a search. Both ways find the
    same letters. An operation fails with a reason if its group becomes too large for the first way."""
    connection = operations.connection
    monkeypatch.setattr(module, "_PAGE", 7)
    ids = bury(connection, 25)
    bury(connection, 4, "b", "bbb")
    kind = ReplayDeadLetters(connection)
    until_ms = connection.store.now_ms() + 1

    def letters() -> list[str]:
        taken, cursor = [], None
        while True:
            plan = kind.plan(GROUP, until_ms, cursor, 7)
            taken += [entry[0] for entry in plan.entries]
            cursor = plan.cursor
            if cursor is None:
                return sorted(taken)

    assert letters() == sorted(ids)
    monkeypatch.setattr(module, "_FEW", 10)
    assert letters() == sorted(ids)
    monkeypatch.setattr(module, "_FEW", 25)
    ready = operations.counted(REPLAY, GROUP, rate=10.0)
    monkeypatch.setattr(module, "_MANY", 25)
    operations.book.confirm(ready.id, "bob", ready.version)
    operations.until(ready.id, lambda found: found.done >= 10)
    bury(connection, 30, "more")
    failed = operations.ended(operations.book.get(ready.id) or ready)
    assert (failed.state, failed.done + failed.left["not reached"]) == ("failed", 25)
    assert "start a new operation" in failed.error

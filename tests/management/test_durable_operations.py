"""Durable operations are counted, confirmed and run in batches. Their counts stay exact, whatever dies or changes."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from wheel_sched.errors import NotDone, Rejected, StoreUnavailable
from wheel_sched.management.operations import (
    CountedStep,
    DurableOperation,
    OperationBatch,
    OperationBook,
    OperationRunner,
    PerformedBatch,
    PlannedBatch,
)
from wheel_sched.management.operations.operation import read_operation
from wheel_sched.store import DelayStore, Documents, open_store


class Clock:
    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.ms


class Numbers:
    """A kind of operation that changes the numbers below `size`.

    It records its calls. A call with a repeated token gets the answer of the first call.
    """

    name = "numbers"

    def __init__(self, size: int, gone: frozenset[int] = frozenset()) -> None:
        self.size, self.gone = size, gone
        self.changed: list[int] = []
        self.answers: dict[str, PerformedBatch] = {}
        self.remembered: list[bool] = []
        self.before: Any = None
        self.after: Any = None

    def count(self, arguments: Mapping[str, str], until_ms: int, cursor: str | None) -> CountedStep:
        at = int(cursor or 0)
        end = min(at + 300, self.size)
        return CountedStep(end - at, str(end) if end < self.size else None, tuple(map(str, range(at, end)))[:5])

    def plan(self, arguments: Mapping[str, str], until_ms: int, cursor: str | None, budget: int) -> PlannedBatch:
        at = int(cursor or 0)
        end = min(at + budget, self.size)
        chosen = [number for number in range(at, end) if number not in self.gone]
        odd = [number for number in chosen if number % 100 == 99]
        entries = tuple([number] for number in chosen if number % 100 != 99)
        return PlannedBatch(entries, str(end) if end < self.size else None, {"held back": len(odd)} if odd else {})

    def perform(
        self, arguments: Mapping[str, str], batch: OperationBatch, token: str, *, remembered: bool
    ) -> PerformedBatch:
        self.remembered.append(remembered)
        if self.before is not None:
            self.before(batch)
        if token not in self.answers:
            self.changed += [number for (number,) in batch.entries]
            self.answers[token] = PerformedBatch(len(batch.entries))
        if self.after is not None:
            self.after(batch)
        return self.answers[token]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> Iterator[DelayStore]:
    with open_store("memory:", test_clock=clock) as opened:
        yield opened


def until_ready(runner: OperationRunner, book: OperationBook, **more: Any) -> DurableOperation:
    made = book.create("numbers", {"a": "b"}, "ada", **more)
    for _ in range(100):
        found = book.get(made.id)
        assert found is not None
        if found.state == "ready":
            return found
        runner.run_once()
    raise AssertionError(found)


def until_ended(runner: OperationRunner, book: OperationBook, operation_id: str) -> DurableOperation:
    for _ in range(1_000):
        found = book.get(operation_id)
        assert found is not None
        if not found.is_open:
            return found
        runner.run_once()
    raise AssertionError(found)


def test_an_operation_counts_waits_for_a_person_and_runs(store: DelayStore) -> None:
    """Nothing is changed before the count is confirmed. Then each thing is changed once, and the counts add up."""
    kind, book = Numbers(1_000), OperationBook(store)
    ended: list[DurableOperation] = []
    runner = OperationRunner(store, [kind], on_end=ended.append)
    ready = until_ready(runner, book)
    assert (ready.matched, ready.samples, kind.changed) == (1_000, ("0", "1", "2", "3", "4"), [])
    runner.run_once()
    assert kind.changed == []
    book.confirm(ready.id, "bob", ready.version)
    done = until_ended(runner, book, ready.id)
    assert kind.changed == [number for number in range(1_000) if number % 100 != 99]
    assert (done.state, done.done, done.left, done.confirmed_by) == ("done", 990, {"held back": 10}, "bob")
    assert [one.id for one in ended] == [done.id]
    assert book.open() == []


def test_an_operation_that_goes_on_for_weeks_stays_open(store: DelayStore, clock: Clock) -> None:
    """While runners look for open operations, the entry by which they find one does not end before its record."""
    kind, book = Numbers(50), OperationBook(store)
    runner = OperationRunner(store, [kind])
    ready = until_ready(runner, book)
    clock.ms += 20 * 86_400_000
    runner.run_once()
    book.confirm(ready.id, "bob", ready.version)
    clock.ms += 20 * 86_400_000
    assert [one.id for one in book.open()] == [ready.id]
    assert until_ended(runner, book, ready.id).done == 50


def test_things_that_went_away_meanwhile_are_counted(store: DelayStore) -> None:
    """Things that were counted and then disappeared count as left, as "gone meanwhile". So the counts add up."""
    kind, book = Numbers(300), OperationBook(store)
    runner = OperationRunner(store, [kind])
    ready = until_ready(runner, book)
    kind.gone = frozenset(range(50))
    book.confirm(ready.id, "bob", ready.version)
    done = until_ended(runner, book, ready.id)
    assert (done.done, done.left) == (247, {"gone meanwhile": 50, "held back": 3})
    assert done.handled == done.matched == 300


def test_no_more_is_changed_than_was_counted(store: DelayStore) -> None:
    """Things that appear after the count are not changed, even when the kind finds them."""
    kind, book = Numbers(50), OperationBook(store)
    runner = OperationRunner(store, [kind])
    ready = until_ready(runner, book)
    kind.size = 500
    book.confirm(ready.id, "bob", ready.version)
    assert until_ended(runner, book, ready.id).done == len(kind.changed) == 50


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("late", [False, True])
def test_a_dead_runners_batch_is_settled_once(store: DelayStore, clock: Clock, when: str, late: bool) -> None:
    """When a runner dies before or after its change, another runner performs its batch under the same token."""

    class Died(BaseException):
        pass

    def die(_: OperationBatch) -> None:
        raise Died

    kind, book = Numbers(450), OperationBook(store)
    first, second = OperationRunner(store, [kind]), OperationRunner(store, [kind])
    ready = until_ready(first, book)
    book.confirm(ready.id, "bob", ready.version)
    setattr(kind, when, die)
    with pytest.raises(Died):
        first.run_once()
    setattr(kind, when, None)
    second.run_once()
    assert len(kind.changed) == (198 if when == "after" else 0)  # the lease has not ended
    clock.ms += 120_000 if late else 21_000
    done = until_ended(second, book, ready.id)
    assert sorted(kind.changed) == [number for number in range(450) if number % 100 != 99]
    assert (done.done, done.left) == (446, {"held back": 4})
    assert kind.remembered[1] is not late


def test_two_runners_share_the_operations_and_change_each_thing_once(store: DelayStore) -> None:
    """Only the holder of the lease works on an operation."""
    kind, book = Numbers(900), OperationBook(store)
    first, second = OperationRunner(store, [kind]), OperationRunner(store, [kind])
    ready = until_ready(first, book)
    book.confirm(ready.id, "bob", ready.version)
    for _ in range(10):
        second.run_once()
        first.run_once()
    found = book.get(ready.id)
    assert found is not None
    assert found.state == "done"
    assert len(kind.changed) == len(set(kind.changed)) == 891


def test_a_change_of_the_record_during_a_batch_keeps_the_counts(store: DelayStore) -> None:
    """An operation is cancelled during a batch. The batch is counted, and the things after it are counted as not
    reached.
    """
    kind, book = Numbers(450), OperationBook(store)
    runner = OperationRunner(store, [kind])
    ready = until_ready(runner, book)
    book.confirm(ready.id, "bob", ready.version)
    kind.before = lambda _: book.cancel(ready.id)
    runner.run_once()
    kind.before = None
    ended = until_ended(runner, book, ready.id)
    assert (ended.state, ended.done, ended.left) == ("cancelled", 198, {"held back": 2, "not reached": 250})
    assert len(kind.changed) == 198


def test_paused_it_stands_still_and_resumed_it_goes_on(store: DelayStore) -> None:
    kind, book = Numbers(450), OperationBook(store)
    runner = OperationRunner(store, [kind])
    ready = until_ready(runner, book)
    book.confirm(ready.id, "bob", ready.version)
    runner.run_once()
    book.pause(ready.id)
    for _ in range(5):
        runner.run_once()
    assert len(kind.changed) == 198
    with pytest.raises(NotDone, match="is paused"):
        book.pause(ready.id)
    book.resume(ready.id)
    assert until_ended(runner, book, ready.id).done == 446


def test_the_rate_is_kept_over_runners(store: DelayStore, clock: Clock) -> None:
    """At 10 a second, a batch has 10 things. The next batch waits for the next second, whichever runner takes it."""
    kind, book = Numbers(40), OperationBook(store)
    runner = OperationRunner(store, [kind])
    ready = until_ready(runner, book, rate=10.0)
    book.confirm(ready.id, "bob", ready.version)
    sizes = []
    for _ in range(4):
        runner.run_once()
        assert 0 < runner.run_once() <= 1.0
        sizes.append(len(kind.changed))
        clock.ms += 1_000
    assert sizes == [10, 20, 30, 40]


def test_a_spread_becomes_a_rate_of_the_counted_things(store: DelayStore) -> None:
    book = OperationBook(store)
    runner = OperationRunner(store, [Numbers(600)])
    ready = until_ready(runner, book, spread_ms=60_000)
    assert book.confirm(ready.id, "bob", ready.version).rate == 10.0


def test_an_error_of_the_kind_ends_only_its_operation(store: DelayStore) -> None:
    """The operation keeps the error and counts the things of the failed batch, so the counts add up."""
    kind, book = Numbers(450), OperationBook(store)
    runner = OperationRunner(store, [kind])
    ready = until_ready(runner, book)
    book.confirm(ready.id, "bob", ready.version)

    def refuse(_: OperationBatch) -> None:
        raise Rejected("these letters are signed")

    kind.before = refuse
    ended = until_ended(runner, book, ready.id)
    assert (ended.state, ended.error) == ("failed", "Rejected: these letters are signed")
    assert ended.left == {"held back": 2, "in the batch that failed": 198, "not reached": 250}


def test_an_error_of_the_store_is_no_end(store: DelayStore) -> None:
    """If the store does not answer, the operation does not fail. The batch is tried again under the same token."""
    kind, book = Numbers(100), OperationBook(store)
    runner = OperationRunner(store, [kind])
    ready = until_ready(runner, book)
    book.confirm(ready.id, "bob", ready.version)

    def away(_: OperationBatch) -> None:
        kind.after = None
        raise StoreUnavailable("away", in_doubt=True)

    kind.after = away
    assert runner.run_once() > 0
    done = until_ended(runner, book, ready.id)
    assert (done.state, done.done, len(kind.changed)) == ("done", 99, 99)


def test_a_count_that_has_changed_cannot_be_confirmed(store: DelayStore) -> None:
    book = OperationBook(store)
    ready = until_ready(OperationRunner(store, [Numbers(10)]), book)
    with pytest.raises(NotDone, match="has changed meanwhile"):
        book.confirm(ready.id, "bob", ready.version - 1)
    with pytest.raises(NotDone, match="kept for 30 days"):
        book.confirm("nothing", "bob", 1)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"rate": 0.0}, "expected a rate above 0"),
        ({"rate": float("nan")}, "expected a rate above 0"),
        ({"spread_ms": 0}, "expected a spread above 0"),
        ({"rate": 1.0, "spread_ms": 5}, "not both"),
    ],
)
def test_a_wrong_pace_is_refused(store: DelayStore, more: dict[str, Any], said: str) -> None:
    with pytest.raises(Rejected, match=said):
        OperationBook(store).create("numbers", {}, "ada", **more)
    assert OperationBook(store).newest()[0] == []


def test_a_hundred_operations_may_be_open(store: DelayStore) -> None:
    book = OperationBook(store)
    made = [book.create("numbers", {}, "ada") for _ in range(100)]
    with pytest.raises(NotDone, match="100 operations are open"):
        book.create("numbers", {}, "ada")
    book.cancel(made[0].id)
    book.create("numbers", {}, "ada")
    assert len(book.open()) == 100


def test_ended_operations_leave_after_thirty_days(store: DelayStore, clock: Clock) -> None:
    book = OperationBook(store)
    made = book.create("numbers", {}, "ada")
    book.cancel(made.id)
    clock.ms += 30 * 86_400_000 - 1
    assert book.get(made.id) is not None
    clock.ms += 1
    assert book.get(made.id) is None


def test_the_list_of_open_operations_heals(store: DelayStore, clock: Clock) -> None:
    """An entry in the list of open operations is removed after a minute if its operation was never stored."""
    Documents(store).put("open-operations", "lost", b"")
    book = OperationBook(store)
    assert book.open() == []
    assert Documents(store).count("open-operations") == 1
    clock.ms += 60_001
    assert book.open() == []
    assert Documents(store).count("open-operations") == 0


def test_a_record_of_a_later_release_can_be_read(store: DelayStore) -> None:
    made = OperationBook(store).create("numbers", {"error": "\x1b[31m<b>\udcff"}, "ada")
    assert read_operation(made.as_json()[:-1] + b', "new": 1}', made.version) == made
    begun = replace(made, batch=OperationBatch(7, 5))
    assert read_operation(begun.as_json().replace(b'"number": 7', b'"number": 7, "new": 1'), made.version) == begun


def test_the_thread_runs_operations_and_stops(store: DelayStore) -> None:
    """A second `start` starts no second thread, and a second `close` does nothing."""
    ended = threading.Event()
    kind, book = Numbers(10), OperationBook(store)
    runner = OperationRunner(store, [kind], on_end=lambda _: ended.set()).start().start()
    made = book.create("numbers", {}, "ada")
    runner.wake()
    while (found := book.get(made.id)) is not None and found.state != "ready":
        threading.Event().wait(0.01)  # the runner's thread counts
    assert found is not None
    book.confirm(made.id, "bob", found.version)
    runner.wake()
    assert ended.wait(20)
    runner.close()
    runner.close()
    assert len(kind.changed) == 10


def test_an_operation_whose_record_took_long_is_found_by_runners(
    store: DelayStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runners remove an entry from the list of open operations if its record is missing for a minute. If the record
    is stored later, the operation is in the list again."""
    book = OperationBook(store)
    put = Documents.put

    def late(self: Documents, collection: str, *args: Any, **kwargs: Any) -> Any:
        if collection == "operations":
            self.remove("open-operations", args[0])
        return put(self, collection, *args, **kwargs)

    monkeypatch.setattr(Documents, "put", late)
    made = book.create("numbers", {}, "ada")
    assert [one.id for one in book.open()] == [made.id]

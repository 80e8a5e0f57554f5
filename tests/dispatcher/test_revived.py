"""A dispatcher's threads survive unknown markers, bugs and publishers that raise. Each error costs only a delay."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from wheel_sched.dispatcher import Batch, DispatcherConfig, SharedLeases
from wheel_sched.observability import dead_parts, unready_parts
from wheel_sched.reviving import RevivedThread
from wheel_sched.store.core.call import Call, SentCalls
from wheel_sched.store.core.claim import Claim
from wheel_sched.store.core.settle import Settle, Settlement

if TYPE_CHECKING:
    import pytest
    from conftest import World


def test_a_listener_that_fails_starts_again(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After an unexpected error the listener thread listens again. Until then the dispatcher is not ready."""
    wait, failures, held = world.backend.wait_for_mark, [KeyError(b"d")], threading.Event()
    make = world.backend.waiter

    def failing(waiter: Any, marks: Any, timeout_ms: int) -> Any:
        if failures:
            raise failures.pop()
        return wait(waiter, marks, timeout_ms)

    def waiter(shard: int, timeout_ms: int) -> Any:
        if not failures:
            held.wait(20)
        return make(shard, timeout_ms)

    monkeypatch.setattr(world.backend, "wait_for_mark", failing)
    monkeypatch.setattr(world.backend, "waiter", waiter)
    dispatcher = world.dispatcher()
    world.until(lambda: not dispatcher.ready)
    assert unready_parts({"d": dispatcher})
    held.set()
    world.until(lambda: dispatcher.ready)
    assert dead_parts({"d": dispatcher}) == []
    world.put("later", in_ms=5)
    world.calm()
    world.advance(5)
    world.received(1)
    assert "dispatcher.listener_failed" in caplog.text


class Failing(SharedLeases):
    """A claim source that raises the errors in `claim_errors`, and an error for each batch that begins with the
    item "bad"."""

    def __init__(self, world: World) -> None:
        super().__init__(world.store, DispatcherConfig())
        self.claim_errors: list[BaseException] = []

    def claimed(self, call: Call[Any], claim: Claim) -> None:
        if self.claim_errors and claim.items:
            raise self.claim_errors.pop()

    def to_settle(self, batch: Batch, settlements: Sequence[Settlement]) -> Sequence[Settlement]:
        if batch.items[0].id == "bad":
            raise KeyError("bad")
        return settlements


class Unreadable(NamedTuple):
    """Wraps the replies to calls that the store has executed. Reading the replies raises an unexpected error."""

    replies: SentCalls

    def answers(self) -> list[Any]:
        self.replies.answers()
        raise KeyError("x")


def test_a_step_that_fails_is_followed_by_another(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """After an unexpected error in a step, the owner thread waits, reads its shards again and publishes each
    waiting item once."""
    claims = Failing(world)
    dispatcher = world.dispatcher(claims=claims)
    claims.claim_errors.append(SystemExit(1))
    world.put("a")
    world.until(lambda: dispatcher.stats.store_errors == 1)
    assert not dispatcher.ready
    world.calm()
    for _ in range(2):
        world.advance(60_000)  # the lease of the failed step's claim ends
    assert [item.id for item in world.received(1)] == ["a"]
    world.until(lambda: dispatcher.ready)
    assert "dispatcher.step_failed" in caplog.text


def test_a_batch_whose_settling_failed_is_settled_in_the_next_step(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the replies to a settlement cannot be read, the next step settles the batch again. Its items are not
    published again."""
    begin, failures = world.store.begin, [True]

    def failing(calls: Sequence[Call[Any]]) -> Any:
        if failures and any(isinstance(call.operation, Settle) for call in calls):
            failures.clear()
            return Unreadable(begin(calls))
        return begin(calls)

    monkeypatch.setattr(world.store, "begin", failing)
    dispatcher = world.dispatcher()
    world.put("a")
    world.until(lambda: dispatcher.stats.store_errors == 1)
    world.calm()
    world.advance(1_000)
    world.until(lambda: dispatcher.stats.in_flight == 0)
    assert (dispatcher.stats.published, dispatcher.stats.stale) == (1, 0)
    assert world.receiver.ids == ["a"]
    assert world.state("a") is None


def test_a_batch_that_fails_every_step_is_forgotten(world: World) -> None:
    """If settling a batch always raises, the batch is given up: its items are due again after the lease. Other
    batches are published."""
    dispatcher = world.dispatcher(claims=Failing(world))
    world.put("bad")
    world.until(lambda: dispatcher.stats.store_errors == 1)
    for _ in range(3):
        world.advance(1_000)
    world.put("good")
    world.until(lambda: "good" in world.receiver.ids)
    world.until(lambda: dispatcher.stats.in_flight == 0)


def test_a_publisher_that_raises_system_exit_ends_no_worker(world: World) -> None:
    """If a publisher raises `SystemExit`, its batch is in doubt, and the same thread publishes the batch again."""
    dispatcher = world.dispatcher()
    failures = [SystemExit(1)]

    def before(batch: Batch) -> None:
        if failures:
            raise failures.pop()

    world.receiver.before = before
    world.put("a")
    world.until(lambda: not failures)
    world.until(lambda: dispatcher.stats.in_doubt == 1)
    world.calm()
    world.advance(60_000)
    world.until(lambda: world.receiver.ids == ["a"])
    assert dispatcher.problems() == []


def test_a_store_that_hangs_makes_the_dispatcher_not_ready_within_two_seconds(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a call of the store hangs, the dispatcher is not ready after 2 s, long before the call times out."""
    dispatcher = world.dispatcher()
    assert dispatcher.ready
    begin, asked, going_on = world.store.begin, threading.Event(), threading.Event()

    def hanging(calls: Any) -> Any:
        asked.set()
        going_on.wait(20)
        return begin(calls)

    monkeypatch.setattr(world.store, "begin", hanging)
    world.put("a")
    assert asked.wait(20)
    world.clock.advance(2_001)
    assert not dispatcher.ready
    going_on.set()
    world.until(lambda: dispatcher.ready)


def test_a_revived_thread_ends_after_stopping_was_set() -> None:
    """If `work` raises, the thread calls it again. Once `stopping` is set, the thread ends."""
    stopping, begun = threading.Event(), threading.Semaphore(0)

    def work() -> None:
        begun.release()
        raise KeyError("always")

    thread = RevivedThread(work, "t", stopping)
    thread.start()
    assert begun.acquire(timeout=20)
    assert begun.acquire(timeout=20)
    stopping.set()
    thread.join(20)
    assert not thread.is_alive()

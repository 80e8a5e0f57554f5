"""The cases of Kafka's DelayedOperationTest, on every kind of purgatory. Each docstring begins with the case's name."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from wheel_sched.purgatory import Completion, DelayedOperation, Purgatory


def test_lock_in_try_complete_else_watch(world: Any) -> None:
    """testLockInTryCompleteElseWatch: the operation's lock is held during both tries of `try_complete_else_watch`."""
    held: list[bool] = []
    lock = threading.RLock()

    class Operation(DelayedOperation):
        def try_complete(self) -> bool:
            taken = []
            thread = threading.Thread(target=lambda: taken.append(lock.acquire(blocking=False)))
            thread.start()
            thread.join()
            held.append(not taken[0])
            return False

        def on_complete(self) -> None: ...

    operation = Operation(100_000, lock=lock)
    assert not world.purgatory.try_complete_else_watch(operation, ["key"])
    assert held == [True, True]


@pytest.mark.parametrize("complete", [False, True])
def test_safe_try_complete_or_else(probe: Any, complete: bool) -> None:
    """testSafeTryCompleteOrElse: if the first try fails, the action is called, and a second try follows."""
    operation = probe(100_000, ready=complete)
    done: list[int] = []
    assert operation.safe_try_complete_or_else(lambda: done.append(operation.tries)) is complete
    assert (done, operation.tries) == (([], 1) if complete else ([1], 2))


def test_safe_try_complete_or_else_sees_what_the_action_did(probe: Any) -> None:
    """If the action of `safe_try_complete_or_else` makes the operation ready, the try after the action completes it."""
    operation = probe(100_000)
    assert operation.safe_try_complete_or_else(lambda: setattr(operation, "ready", True))
    assert (operation.completions, operation.completion) == (1, Completion.SATISFIED)


def test_request_satisfaction(world: Any, probe: Any) -> None:
    """testRequestSatisfaction: a check completes the operations of its key, and no others."""
    first, second = probe(100_000), probe(100_000)
    purgatory = world.purgatory
    assert purgatory.check_and_complete("test1") == 0
    assert not purgatory.try_complete_else_watch(first, ["test1"])
    assert purgatory.check_and_complete("test1") == 0
    assert not purgatory.try_complete_else_watch(second, ["test2"])
    assert purgatory.check_and_complete("test2") == 0
    first.ready = True
    assert purgatory.check_and_complete("test1") == 1
    assert purgatory.check_and_complete("test1") == 0
    second.ready = True
    assert purgatory.check_and_complete("test2") == 1
    assert purgatory.check_and_complete("test2") == 0
    assert (first.completions, second.completions, first.expirations + second.expirations) == (1, 1, 0)


def test_request_expiry(world: Any, probe: Any) -> None:
    """testRequestExpiry: an operation that nobody completes expires, and not early. A completed operation does not
    expire."""
    expiring, completed = probe(20), probe(200_000)
    start_ms = world.clock.monotonic_ms()
    assert not world.purgatory.try_complete_else_watch(expiring, ["test1"])
    assert not world.purgatory.try_complete_else_watch(completed, ["test2"])
    expired_ms: list[int] = []
    expiring.when_completed(lambda _: expired_ms.append(world.clock.monotonic_ms() - start_ms))
    completed.ready = True
    assert world.purgatory.check_and_complete("test2") == 1
    world.advance(19)
    assert not expiring.is_completed
    world.advance(2)
    assert expiring.completion is Completion.EXPIRED
    assert expired_ms[0] >= 20
    assert (expiring.completions, expiring.expirations) == (1, 1)
    assert (completed.completions, completed.expirations) == (1, 0)
    stats = world.purgatory.stats
    assert (stats.satisfied, stats.delayed, stats.watched, stats.keys) == (1, 0, 0, 0)
    assert sum(stats.lateness_counts) == stats.expired >= 1


def test_request_purge(world: Any, probe: Any) -> None:
    """testRequestPurge: a completed operation leaves every list at once. In Kafka only a check or a purge removes
    it."""
    first, second, third = probe(100_000), probe(100_000), probe(100_000)
    purgatory = world.purgatory
    purgatory.try_complete_else_watch(first, ["test1"])
    purgatory.try_complete_else_watch(second, ["test1", "test2"])
    purgatory.try_complete_else_watch(third, ["test1", "test2", "test3"])
    assert (purgatory.delayed, purgatory.watched()) == (3, 6)
    second.ready = True
    second.try_complete()
    assert (purgatory.delayed, purgatory.watched()) == (2, 4)
    third.ready = True
    third.try_complete()
    assert (purgatory.delayed, purgatory.watched()) == (1, 1)
    purgatory.check_and_complete("test1")
    assert (purgatory.delayed, purgatory.watched()) == (1, 1)
    assert purgatory.stats.keys == 1


def test_should_cancel_for_key_returning_cancelled_operations(world: Any, probe: Any) -> None:
    """shouldCancelForKeyReturningCancelledOperations: `cancel_for_key` returns the key's operations and completes
    none."""
    purgatory = world.purgatory
    here = [probe(10_000), probe(10_000)]
    for operation in here:
        purgatory.try_complete_else_watch(operation, ["key"])
    purgatory.try_complete_else_watch(probe(10_000), ["key2"])
    assert purgatory.cancel_for_key("key") == here
    assert (purgatory.delayed, purgatory.watched(), purgatory.stats.cancelled) == (1, 1, 2)
    assert not any(operation.is_completed for operation in here)


def test_should_return_nothing_when_the_key_does_not_exist(world: Any) -> None:
    """shouldReturnNilOperationsOnCancelForKeyWhenKeyDoesntExist: for an unknown key `cancel_for_key` returns an
    empty list."""
    assert world.purgatory.cancel_for_key("key") == []


def test_what_was_cancelled_is_completed_by_force_alone(world: Any, probe: Any) -> None:
    """An operation waits under two keys and is cancelled by one of them. Only `force_complete` completes it: neither
    its timer nor a check of its other key does. It cannot be watched again."""
    operation = probe(20)
    world.purgatory.try_complete_else_watch(operation, ["key", "other"])
    assert world.purgatory.cancel_for_key("key") == [operation]
    operation.ready = True
    assert world.purgatory.check_and_complete("other") == 0
    operation.run()
    world.advance(30)
    assert not operation.safe_try_complete()
    assert not operation.is_completed
    with pytest.raises(ValueError, match="was cancelled"):
        world.purgatory.try_complete_else_watch(operation, ["key"])
    assert operation.force_complete()
    assert operation.completions == 1


@pytest.mark.slow
def test_try_complete_with_multiple_threads() -> None:
    """testTryCompleteWithMultipleThreads: 20 threads make 20 attempts for each of 100 operations. All operations
    complete."""
    with Purgatory[Any]() as purgatory, ThreadPoolExecutor(20) as pool:

        class Operation(DelayedOperation):
            def __init__(self, key: str) -> None:
                super().__init__(10 * 60_000)
                self.key = key
                self.attempts_left = 20
                self.guard = threading.Lock()

            def try_complete(self) -> bool:
                threading.Event().wait(random.uniform(0, 0.001))  # as in Kafka's test, a try takes a moment
                return self.attempts_left == 0

            def on_complete(self) -> None: ...

            def attempt(self) -> None:
                with self.guard:
                    self.attempts_left -= 1
                purgatory.check_and_complete(self.key)

        operations = [Operation(f"key{number}") for number in range(100)]
        for operation in operations:
            purgatory.try_complete_else_watch(operation, [operation.key])
        attempts: list[Callable[[], None]] = [operation.attempt for operation in operations for _ in range(20)]
        random.shuffle(attempts)
        for future in [pool.submit(attempt) for attempt in attempts]:
            future.result(50)
        assert [operation.completion for operation in operations] == [Completion.SATISFIED] * 100
        assert (purgatory.watched(), purgatory.delayed) == (0, 0)

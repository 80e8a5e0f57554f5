"""Bugs of Kafka's purgatory and timer, each with a regression test, and the rule that avoids deadlocks.

A test that hangs here has found a deadlock: `run_all` fails after half a minute.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from wheel_sched.purgatory import Completion, DelayedOperation, Purgatory, Reaper
from wheel_sched.testing import VirtualClock


class Gate(DelayedOperation):
    """An operation that is complete when `ready` returns True. Its completion calls `follows`."""

    def __init__(
        self,
        ready: Callable[[], bool],
        follows: Callable[[], object] = lambda: None,
        timeout_ms: int = 600_000,
        lock: Any = None,
    ) -> None:
        super().__init__(timeout_ms, lock=lock)
        self._ready = ready
        self._follows = follows

    def try_complete(self) -> bool:
        return self._ready()

    def on_complete(self) -> None:
        self._follows()


def test_kafka_2253_lists_and_operations_do_not_lock_each_other_out(run_all: Any) -> None:
    """KAFKA-2253: a thread that completed an operation and a thread that watched one waited for each other's locks.

    Here several threads complete operations. Each completion watches and checks other operations under the same keys.
    """
    with Purgatory[str]() as purgatory:
        followers: list[Gate] = []

        def work(number: int) -> None:
            for _ in range(100):
                follower = Gate(lambda: False, timeout_ms=1)
                followers.append(follower)

                def follow(follower: Gate = follower) -> None:
                    purgatory.try_complete_else_watch(follower, ["a", "b"])
                    purgatory.check_and_complete("b")

                ready: list[bool] = []
                operation = Gate(lambda ready=ready: bool(ready), follow)  # type: ignore[misc]
                purgatory.try_complete_else_watch(operation, ["a", "b"] if number % 2 else ["b", "a"])
                ready.append(True)
                purgatory.check_and_complete("a")
                assert operation.is_completed

        run_all([lambda number=number: work(number) for number in range(4)])
        assert len(followers) == 400
        for follower in followers:
            assert follower.wait(30) is Completion.EXPIRED
        assert (purgatory.watched(), purgatory.delayed) == (0, 0)


def test_kafka_3994_what_follows_may_take_the_lock_of_whoever_completes(run_all: Any) -> None:
    """KAFKA-3994: a thread completed operations under a group's lock; a completion on another thread needed that lock.

    Here a completion's callback runs without the operation's lock, so the thread that holds the group's lock can
    continue.
    """
    group = threading.Lock()
    entered, go_on = threading.Event(), threading.Event()
    with Purgatory[str]() as purgatory:

        def follows() -> None:
            entered.set()
            go_on.wait(30)
            with group:
                pass

        first, second = Gate(lambda: True, follows), Gate(lambda: False)
        first_ready: list[bool] = []
        first._ready = lambda: bool(first_ready)
        purgatory.try_complete_else_watch(first, ["group"])
        purgatory.try_complete_else_watch(second, ["group"])

        def expires() -> None:
            first.force_complete()

        def holds_the_group() -> None:
            assert entered.wait(30)
            with group:
                go_on.set()
                purgatory.check_and_complete("group")

        run_all([expires, holds_the_group])


@pytest.mark.parametrize("rounds", [200])
def test_kafka_5970_and_6042_two_groups_that_complete_each_other(run_all: Any, rounds: int) -> None:
    """KAFKA-5970, KAFKA-6042: two groups completed each other's operations, each under its own lock: deadlock.

    Each operation here has its group's lock. A thread that changes a group releases this lock before it checks.
    """
    locks = {"one": threading.RLock(), "two": threading.RLock()}
    with Purgatory[str]() as purgatory:
        operations: list[Gate] = []

        def work(own: str, other: str) -> None:
            for _ in range(rounds):
                ready: list[bool] = []
                operation = Gate(
                    lambda ready=ready: bool(ready),  # type: ignore[misc]
                    lambda: purgatory.check_and_complete(other),
                    lock=locks[own],
                )
                operations.append(operation)
                purgatory.try_complete_else_watch(operation, [own, "both"])
                with locks[own]:
                    ready.append(True)
                purgatory.check_and_complete("both")

        run_all([lambda: work("one", "two"), lambda: work("two", "one")] * 2)
        assert all(operation.completion is Completion.SATISFIED for operation in operations)


def test_kafka_6653_a_try_under_contention_waits_instead_of_being_skipped() -> None:
    """KAFKA-6653: a thread that found another one in `tryComplete` gave up, so the last change was overlooked.

    Here one try has read the old state and takes long. Meanwhile the state changes, and the next check must see the
    change.
    """
    reading, changed = threading.Event(), threading.Event()
    state = {"ready": False}

    def ready() -> bool:
        seen = state["ready"]
        if armed and not reading.is_set():
            reading.set()
            changed.wait(30)
        return seen

    armed = False
    with Purgatory[str]() as purgatory:
        operation = Gate(ready)
        purgatory.try_complete_else_watch(operation, ["key"])
        armed = True
        slow = threading.Thread(target=purgatory.check_and_complete, args=("key",))
        slow.start()
        assert reading.wait(30)
        state["ready"] = True
        late = threading.Thread(target=purgatory.check_and_complete, args=("key",))
        late.start()
        changed.set()
        slow.join(30)
        late.join(30)
        assert operation.completion is Completion.SATISFIED


def test_kafka_8334_a_lock_that_is_held_elsewhere_delays_a_try_and_does_not_drop_it() -> None:
    """KAFKA-8334: while a group's lock was held for long, its operations were not tried, and expired. Here a try
    waits."""
    group = threading.RLock()
    ready: list[bool] = []
    with Purgatory[str]() as purgatory:
        operation = Gate(lambda: bool(ready), lock=group)
        purgatory.try_complete_else_watch(operation, ["key"])
        ready.append(True)
        with group:
            checker = threading.Thread(target=purgatory.check_and_complete, args=("key",))
            checker.start()
            checker.join(0.05)  # cannot end while the lock is held; the time is enough to reach the lock
            assert not operation.is_completed
        checker.join(30)
        assert operation.completion is Completion.SATISFIED


def test_kafka_1952_completed_operations_cost_nothing_and_wake_nobody() -> None:
    """KAFKA-1952: satisfied requests stayed in lists and queue, and the reaper visited them again and again.

    Here 2,000 operations complete. Then the lists are empty, and the reaper has been woken for none of their deadlines.
    """
    clock = VirtualClock()
    with Reaper(clock=clock) as reaper, Purgatory[str](reaper, clock=clock) as purgatory:
        keeper = Gate(lambda: False, timeout_ms=1_000_000)
        purgatory.try_complete_else_watch(keeper, ["key"])
        clock.wait_for_waiters(1)
        for number in range(2_000):
            operation = Gate(lambda: False, timeout_ms=2_000_000 + number)
            purgatory.try_complete_else_watch(operation, ["key", "other"])
            operation.force_complete()
        assert (purgatory.watched(), purgatory.stats.keys, len(reaper)) == (1, 1, 1)
        assert clock.waiting == 1  # the reaper still sleeps, until the keeper's deadline
        assert reaper.sleeps == 1


def test_kafka_2226_completing_while_the_timer_expires(run_all: Any) -> None:
    """KAFKA-2226: a task was removed while the timer emptied its bucket, and the two interfered.

    Here a thousand operations are forced at the moment they expire. Each ends once, forced or expired.
    """
    with Purgatory[int]() as purgatory:
        ends: list[int] = []
        operations = [Gate(lambda: False, lambda: ends.append(1), timeout_ms=2 + number % 5) for number in range(1_000)]
        for number, operation in enumerate(operations):
            purgatory.try_complete_else_watch(operation, [number % 7])
        run_all([lambda: [each.force_complete() for each in operations], lambda: [each.run() for each in operations]])
        for operation in operations:
            assert operation.wait(30) is not None
        assert len(ends) == 1_000
        assert (purgatory.watched(), purgatory.delayed) == (0, 0)


def test_kafka_4051_the_wall_clock_neither_expires_nor_delays(world: Any, probe: Any) -> None:
    """KAFKA-4051: deadlines used the wall clock, so a step of it expired all operations at once, or none for an hour.

    Here a step of the wall clock changes no deadline.
    """
    operation = probe(20)
    world.purgatory.try_complete_else_watch(operation, ["key"])
    world.clock.jump_wall(86_400_000)
    world.advance(19)
    assert not operation.is_completed
    world.clock.jump_wall(-2 * 86_400_000)
    world.advance(2)
    assert operation.completion is Completion.EXPIRED


def test_kafka_2112_levels_made_by_many_threads_lose_nobody(run_all: Any) -> None:
    """KAFKA-2112: a thread could see an incomplete overflow wheel that another thread had just made.

    Here four threads watch operations with timeouts of all levels, from a millisecond to a hundred years. All expire.
    """
    clock = VirtualClock()
    with Reaper(wheel_size=4, clock=clock) as reaper, Purgatory[int](reaper, clock=clock) as purgatory:
        operations = [[Gate(lambda: False, timeout_ms=1 << power) for power in range(42)] for _ in range(4)]

        def work(number: int) -> None:
            for operation in operations[number]:
                purgatory.try_complete_else_watch(operation, [number])

        run_all([lambda number=number: work(number) for number in range(4)])
        for power in range(42):
            assert not any(each[power].is_completed for each in operations)
            clock.advance((1 << power) - clock.monotonic_ms())
            assert [each[power].wait(30) for each in operations] == [Completion.EXPIRED] * 4
        assert (purgatory.watched(), purgatory.delayed, purgatory.stats.expired) == (0, 0, 168)


def test_kafka_6431_keys_do_not_share_a_lock(run_all: Any) -> None:
    """KAFKA-6431: with one lock for all watcher lists, operations of different keys waited for each other.

    Here a thread that is stuck in an operation of one key delays no other key.
    """
    stuck, leave = threading.Event(), threading.Event()

    def blocks() -> bool:
        if armed:
            stuck.set()
            leave.wait(30)
        return False

    armed = False
    with Purgatory[str]() as purgatory:
        purgatory.try_complete_else_watch(Gate(blocks), ["stuck"])
        armed = True
        thread = threading.Thread(target=purgatory.check_and_complete, args=("stuck",))
        thread.start()
        assert stuck.wait(30)
        for number in range(200):
            operation = Gate(lambda: False)
            purgatory.try_complete_else_watch(operation, [f"key{number}"])
            assert operation.force_complete()
        leave.set()
        thread.join(30)


def test_the_deadlock_rule_and_what_breaks_it() -> None:
    """The rule: a thread must not check while it holds a lock that a `try_complete` takes. Otherwise two threads may
    wait for each other for ever.

    This test breaks the rule. Its locks have a timeout, so that it ends. Thread A holds L and wants the operation's
    lock. Thread B tries the operation, so it holds the operation's lock, and wants L.
    """
    lock_l = threading.Lock()
    a_holds_l, b_is_trying = threading.Event(), threading.Event()
    got: dict[str, bool] = {}

    class Impatient:
        """The operation's lock. A thread that waits for it longer than 0.2 s gets an error."""

        def __init__(self) -> None:
            self._lock = threading.RLock()

        def acquire(self) -> bool:
            if self._lock.acquire(timeout=0.2):
                return True
            got["A has the operation's lock"] = False
            raise TimeoutError("deadlock")

        def release(self) -> None:
            self._lock.release()

    armed = False

    def takes_l() -> bool:
        if not armed:
            return False
        b_is_trying.set()
        assert a_holds_l.wait(30)
        got["B has L"] = lock_l.acquire(timeout=30)  # returns when A gives up and releases L
        if got["B has L"]:
            lock_l.release()
        return False

    with Purgatory[str](on_error=lambda *_: None) as purgatory:
        operation = Gate(takes_l, lock=Impatient())
        purgatory.try_complete_else_watch(operation, ["key"])
        armed = True
        b = threading.Thread(target=operation.safe_try_complete)
        b.start()
        assert b_is_trying.wait(30)
        with lock_l:  # this is what the rule forbids
            a_holds_l.set()
            with pytest.raises(TimeoutError):
                operation.safe_try_complete()
            assert got == {"A has the operation's lock": False}  # B still waits for L: neither could continue
        b.join(30)
        armed = False


def test_the_deadlock_rule_kept(run_all: Any) -> None:
    """One thread checks while it holds the operation's own lock, which the rule allows. Another checks without a
    lock. Both end."""
    own = threading.RLock()
    state = {"tries": 0}

    def counts() -> bool:
        with own:
            state["tries"] += 1
        return False

    with Purgatory[str]() as purgatory:
        given = Gate(counts, lock=own)
        purgatory.try_complete_else_watch(given, ["key"])

        def under_it() -> None:
            for _ in range(300):
                with own:
                    purgatory.check_and_complete("key")

        def beside_it() -> None:
            for _ in range(300):
                purgatory.check_and_complete("key")
                time.sleep(0)  # gives the other thread its turn

        run_all([under_it, beside_it])
        assert state["tries"] >= 600

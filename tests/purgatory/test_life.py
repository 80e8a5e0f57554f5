"""The life of an operation: it ends once, errors are reported, and nothing keeps a completed operation alive."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import weakref
from typing import Any

import pytest

from wheel_sched.errors import Rejected
from wheel_sched.purgatory import Completion, DelayedOperation, Purgatory
from wheel_sched.testing import VirtualClock
from wheel_sched.wheel import TimingWheel


class Failing(DelayedOperation):
    """An operation that raises in the method that `where` names: "try", "complete" or "expiration"."""

    def __init__(self, where: str, timeout_ms: int = 10) -> None:
        super().__init__(timeout_ms)
        self.where = where
        self.armed = True

    def _act(self, where: str) -> None:
        if self.armed and self.where == where:
            raise ValueError(where)

    def try_complete(self) -> bool:
        self._act("try")
        return False

    def on_complete(self) -> None:
        self._act("complete")

    def on_expiration(self) -> None:
        self._act("expiration")


def test_a_true_answer_completes_without_force(world: Any) -> None:
    """If `try_complete` returns True, the operation is completed, as if it had called `force_complete`."""

    class Simple(DelayedOperation):
        def try_complete(self) -> bool:
            return True

        def on_complete(self) -> None: ...

    operation = Simple(10)
    assert world.purgatory.try_complete_else_watch(operation, ["key"])
    assert operation.completion is Completion.SATISFIED
    assert (world.purgatory.watched(), world.purgatory.delayed) == (0, 0)


def test_complete_at_the_second_try_leaves_at_once(world: Any) -> None:
    """If only the second try of `try_complete_else_watch` succeeds, the operation completes then, without a timer."""

    class Second(DelayedOperation):
        tries = 0

        def try_complete(self) -> bool:
            self.tries += 1
            return self.tries == 2

        def on_complete(self) -> None: ...

    operation = Second(10)
    assert world.purgatory.try_complete_else_watch(operation, ["a", "b"])
    assert (world.purgatory.watched(), world.purgatory.delayed, world.purgatory.stats.satisfied) == (0, 0, 1)


def test_every_way_to_an_end_is_counted(world: Any, probe: Any) -> None:
    """Satisfied, forced, expired and cancelled operations have counters. Only expired operations have a lateness."""
    purgatory = world.purgatory
    satisfied, forced, expired, cancelled = (probe(5) for _ in range(4))
    for name, operation in {"s": satisfied, "f": forced, "e": expired, "c": cancelled}.items():
        purgatory.try_complete_else_watch(operation, [name])
    satisfied.ready = True
    purgatory.check_and_complete("s")
    assert forced.force_complete()
    assert not forced.force_complete()
    purgatory.cancel_for_key("c")
    world.advance(8)
    stats = purgatory.stats
    assert (stats.satisfied, stats.forced, stats.cancelled, stats.failed) == (1, 1, 1, 0)
    assert stats.expired >= 1  # the operation by which `advance` waits for the timer's thread expires too
    assert expired.completion is Completion.EXPIRED
    assert sum(stats.lateness_counts) == stats.expired
    assert stats.lateness_max_ms >= 0


def test_a_key_given_twice_is_one_entry(world: Any, probe: Any) -> None:
    """If an operation is watched with the same key twice, the key's list has it once."""
    operation = probe()
    world.purgatory.try_complete_else_watch(operation, ["a", "a"])
    assert world.purgatory.watched("a") == 1
    operation.force_complete()
    assert (world.purgatory.watched(), world.purgatory.stats.keys) == (0, 0)


@pytest.mark.parametrize(("keys", "error"), [([], Rejected), ("key", Rejected), (["a", []], TypeError)])
def test_keys_that_cannot_be_watched_change_nothing(world: Any, probe: Any, keys: Any, error: type[Exception]) -> None:
    """An empty list, a string instead of a list, and an unhashable key are refused. The operation is not watched."""
    operation = probe(10)
    with pytest.raises(error):
        world.purgatory.try_complete_else_watch(operation, keys)
    assert (world.purgatory.watched(), world.purgatory.delayed, world.purgatory.stats.keys) == (0, 0, 0)
    assert not world.purgatory.try_complete_else_watch(operation, ["a"])


def test_an_operation_waits_in_one_place(world: Any, probe: Any) -> None:
    """An operation that already waits is refused. A completed operation is not watched."""
    operation = probe(1000)
    world.purgatory.try_complete_else_watch(operation, ["a"])
    with pytest.raises(Rejected, match="watched already"):
        world.purgatory.try_complete_else_watch(operation, ["b"])
    operation.force_complete()
    assert world.purgatory.try_complete_else_watch(operation, ["b"])
    assert world.purgatory.watched() == 0


@pytest.mark.parametrize("timeout_ms", [1.5, "1", None, True])
def test_a_timeout_is_a_whole_number(probe: Any, timeout_ms: Any) -> None:
    """A timeout that is no whole number is refused at once."""
    with pytest.raises(Rejected, match="timeout_ms"):
        probe(timeout_ms)


@pytest.mark.parametrize("timeout_ms", [0, -5])
def test_no_time_to_wait_expires_at_once(world: Any, probe: Any, timeout_ms: int) -> None:
    """An operation with a timeout of 0 or less is tried and watched. Then the timer expires it, not the caller."""
    operation = probe(timeout_ms)
    assert not world.purgatory.try_complete_else_watch(operation, ["a"])
    world.advance(2)
    assert (operation.completion, operation.expirations) == (Completion.EXPIRED, 1)


def test_what_a_try_raises_reaches_the_caller_who_watches(world: Any) -> None:
    """If `try_complete` raises, the caller gets the error and the operation is not watched. It may be watched later."""
    operation = Failing("try", timeout_ms=1000)
    with pytest.raises(ValueError, match="try"):
        world.purgatory.try_complete_else_watch(operation, ["a"])
    assert (world.purgatory.watched(), operation.is_completed) == (0, False)
    operation.armed = False
    assert not world.purgatory.try_complete_else_watch(operation, ["a"])


def test_a_second_try_that_raises_leaves_no_trace(world: Any) -> None:
    """`try_complete_else_watch` tries twice. If the second try raises, the operation leaves its keys' lists."""

    class SecondFails(Failing):
        tries = 0

        def try_complete(self) -> bool:
            self.tries += 1
            if self.tries == 2:
                raise ValueError("second")
            return False

    with pytest.raises(ValueError, match="second"):
        world.purgatory.try_complete_else_watch(SecondFails("", timeout_ms=1000), ["a", "b"])
    assert (world.purgatory.watched(), world.purgatory.delayed, world.purgatory.stats.keys) == (0, 0, 0)


def test_one_operation_that_raises_does_not_stop_the_others(probe: Any) -> None:
    """If an operation raises in a check, the error is reported with the operation, and the others are tried."""
    reports: list[Any] = []
    with Purgatory[str](on_error=lambda operation, error: reports.append((operation, str(error)))) as purgatory:
        bad, good = Failing("try", timeout_ms=60_000), probe(60_000)
        bad.armed = False
        purgatory.try_complete_else_watch(bad, ["a"])
        purgatory.try_complete_else_watch(good, ["a"])
        bad.armed = good.ready = True
        assert purgatory.check_and_complete("a") == 1
        assert reports == [(bad, "try")]
        assert purgatory.stats.failed == 1
        bad.armed = False


@pytest.mark.parametrize("where", ["complete", "expiration"])
def test_what_an_expired_operation_raises_is_told(where: str, until: Any) -> None:
    """If an expiring operation raises, the error is reported, the operation ends, and the reaper continues."""
    reports: list[Any] = []
    with Purgatory[str](on_error=lambda operation, error: reports.append((operation, str(error)))) as purgatory:
        bad = Failing(where)
        purgatory.try_complete_else_watch(bad, ["a"])
        until(lambda: bool(reports))
        assert reports == [(bad, where)]
        after = Failing("", timeout_ms=1)
        purgatory.try_complete_else_watch(after, ["a"])
        assert after.wait(30) is Completion.EXPIRED
        assert purgatory.watched() == 0


def test_errors_are_logged_when_nobody_wants_them(caplog: pytest.LogCaptureFixture) -> None:
    """Without `on_error`, the error of an operation is logged with its traceback."""
    with Purgatory[str]() as purgatory, caplog.at_level(logging.ERROR, "wheel_sched.purgatory"):
        bad = Failing("complete", timeout_ms=1)
        purgatory.try_complete_else_watch(bad, ["a"])
        bad.wait(30)
    assert "purgatory.operation_failed" in caplog.text
    assert "ValueError: complete" in caplog.text


def test_nothing_keeps_a_completed_operation_alive(world: Any, probe: Any) -> None:
    """However the operation ended, no list, wheel or purgatory refers to it. Its reference count frees it."""
    purgatory = world.purgatory
    ended = {
        "force": lambda operation: operation.force_complete(),
        "check": lambda operation: (setattr(operation, "ready", True), purgatory.check_and_complete("check")),
        "cancel": lambda operation: purgatory.cancel_for_key("cancel"),
        "expire": lambda operation: world.advance(40),
    }
    neighbour = probe(600_000)
    purgatory.try_complete_else_watch(neighbour, [*ended, "shared"])
    for key, end in ended.items():
        operation = probe(30)
        purgatory.try_complete_else_watch(operation, [key, "shared", "own"])
        if key == "cancel":
            purgatory.cancel_for_key("own")
        else:
            end(operation)
        reference = weakref.ref(operation)
        del operation
        if reference() is not None and key == "expire":
            world.advance(3)  # the timer's thread may still hold the frame that expired it
        assert reference() is None, key
    assert (purgatory.delayed, purgatory.watched("own")) == (1, 0)


def test_close_forces_what_waits_and_lets_nothing_in(world: Any, probe: Any) -> None:
    """`close` completes each waiting operation by force, once. Afterwards a call that watches raises an error."""
    waiting = [probe(60_000) for _ in range(3)]
    for operation in waiting:
        world.purgatory.try_complete_else_watch(operation, ["a", "b"])
    assert world.purgatory.close() == waiting
    assert world.purgatory.close() == []
    assert [(each.completion, each.completions, each.expirations) for each in waiting] == [
        (Completion.FORCED, 1, 0)
    ] * 3
    late = probe(60_000)
    with pytest.raises(Rejected, match="closed"):
        world.purgatory.try_complete_else_watch(late, ["a"])
    assert (world.purgatory.watched(), late.is_completed) == (0, False)
    assert "closed" in repr(world.purgatory)


def test_closing_and_opening_leaves_no_thread_behind(new_threads: Any) -> None:
    """Fifty purgatories, each with its own timer, are opened and closed. None of their threads remains."""
    for _ in range(50):
        with Purgatory[str]() as purgatory:
            operation = Failing("", timeout_ms=60_000)
            purgatory.try_complete_else_watch(operation, ["a"])
    assert new_threads() == []


def test_callbacks_come_after_on_complete_and_once(probe: Any) -> None:
    """A callback gets the reason of the completion, whether it is registered before the completion or after it."""
    operation = probe()
    heard: list[Any] = []
    operation.when_completed(lambda ended: heard.append((ended, operation.completions)))
    assert operation.wait(0) is None
    operation.force_complete()
    operation.when_completed(lambda ended: heard.append((ended, operation.completions)))
    assert heard == [(Completion.FORCED, 1)] * 2
    assert operation.wait() is Completion.FORCED


def test_completed_can_be_awaited_in_any_loop(probe: Any) -> None:
    """Several tasks await `completed`, before and after another thread completes the operation."""

    async def main() -> list[Any]:
        operation = probe()

        async def waits() -> Any:
            return await operation.completed

        tasks = [asyncio.create_task(waits()) for _ in range(3)]
        await asyncio.sleep(0)
        await asyncio.to_thread(operation.force_complete)
        return [*[await task for task in tasks], await operation.completed]

    assert asyncio.run(main()) == [Completion.FORCED] * 4


def test_a_cancelled_waiter_does_not_disturb_the_others(probe: Any) -> None:
    """If a task gives up its `await completed`, the operation still completes without an error."""

    async def main() -> Any:
        operation = probe()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_wait(operation), 0.01)
        operation.force_complete()
        return await operation.completed

    assert asyncio.run(main()) is Completion.FORCED


async def _wait(operation: DelayedOperation) -> Completion:
    return await operation.completed


def test_one_callback_that_raises_does_not_keep_the_others_from_hearing(probe: Any) -> None:
    """If a callback raises, other callbacks and waiting threads still get the completion. Then the error is raised."""
    operation = probe()
    heard: list[Any] = []

    def bad(_: Completion) -> None:
        raise ValueError("bad")

    for callback in (bad, heard.append, bad, heard.append):
        operation.when_completed(callback)
    waited: list[Any] = []
    waiter = threading.Thread(target=lambda: waited.append(operation.wait(30)))
    waiter.start()
    while len(operation._callbacks) < 5:
        time.sleep(0.001)  # until the waiter has come
    with pytest.raises(ValueError, match="bad"):
        operation.force_complete()
    waiter.join(30)
    assert (heard, waited) == ([Completion.FORCED] * 2, [Completion.FORCED])


def test_who_gave_up_waiting_leaves_nothing_behind(probe: Any) -> None:
    """Short waits for an operation, on threads or in a loop, leave no callback in the operation."""

    async def gives_up() -> None:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(_wait(operation), 0.001)

    operation = probe()
    for _ in range(20):
        assert operation.wait(0) is None
    asyncio.run(gives_up())
    assert operation._callbacks == []
    operation.force_complete()
    assert operation.wait(0) is Completion.FORCED


def test_a_loop_that_was_closed_meanwhile_keeps_nobody_from_hearing(probe: Any) -> None:
    """If the loop of a waiting task was closed, the task is ignored, and other waiters get the completion."""
    operation, heard = probe(), list[Any]()
    loop = asyncio.new_event_loop()
    try:
        task = loop.create_task(_wait(operation))
        loop.run_until_complete(asyncio.sleep(0))
    finally:
        loop.close()
    operation.when_completed(heard.append)
    operation.force_complete()
    assert heard == [Completion.FORCED]
    task.get_coro().close()
    task._log_destroy_pending = False


def test_time_that_a_try_moves_on_expires_it_once(probe: Any) -> None:
    """The timer expires an operation while `try_complete` of this operation runs and holds the operation's lock. The
    operation completes after `try_complete` has returned, as expired, and only once."""
    clock = VirtualClock()
    wheel: TimingWheel[Any] = TimingWheel(0)

    class ByHand:
        def schedule(self, delay_ms: int, callback: Any) -> Any:
            return wheel.schedule(callback, clock.monotonic_ms() + delay_ms)

    class Moves(probe):  # type: ignore[misc]
        def try_complete(self) -> bool:
            for entry in wheel.advance(clock.monotonic_ms()):
                entry.task()
                assert self.completions == 0, "it was completed under its own lock"
            return False

    purgatory = Purgatory[str](ByHand(), clock=clock)
    operation = Moves(10)
    purgatory.try_complete_else_watch(operation, ["a"])
    clock.advance(10)
    assert purgatory.check_and_complete("a") == 1
    assert (operation.completion, operation.completions, operation.expirations) == (Completion.EXPIRED, 1, 1)
    assert (purgatory.stats.expired, purgatory.watched(), purgatory.delayed) == (1, 0, 0)


def test_a_try_that_closes_the_purgatory_is_completed_by_it(world: Any, probe: Any) -> None:
    """`try_complete` of an operation closes the purgatory. The close completes each operation by force, once."""

    class Closes(probe):  # type: ignore[misc]
        def try_complete(self) -> bool:
            if self.ready:
                forced.extend(world.purgatory.close())
            return False

    forced: list[Any] = []
    operation, other = Closes(60_000), probe(60_000)
    world.purgatory.try_complete_else_watch(operation, ["a"])
    world.purgatory.try_complete_else_watch(other, ["b"])
    operation.ready = True
    assert world.purgatory.check_and_complete("a") == 1
    assert [(each.completion, each.completions) for each in (operation, other)] == [(Completion.FORCED, 1)] * 2
    assert forced == [operation, other]
    assert (world.purgatory.watched(), world.purgatory.delayed, world.purgatory.stats.forced) == (0, 0, 2)


def test_an_error_hook_that_raises_stops_neither_check_nor_close(probe: Any, caplog: pytest.LogCaptureFixture) -> None:
    """If `on_error` itself raises, a check still tries the later operations, and `close` completes them by force."""

    def hook(operation: DelayedOperation, error: Exception) -> None:
        raise RuntimeError("the hook failed")

    purgatory = Purgatory[str](on_error=hook)
    bad, good, last = Failing("try", timeout_ms=60_000), probe(60_000), probe(60_000)
    bad.armed = False
    for operation in (bad, good, last):
        purgatory.try_complete_else_watch(operation, ["a"])
    bad.armed = good.ready = True
    assert purgatory.check_and_complete("a") == 1
    bad.where = "complete"
    assert purgatory.close() == [bad, last]
    assert (last.completions, purgatory.stats.failed) == (1, 2)
    assert "the hook failed" in caplog.text


def test_the_repr_tells_the_state(world: Any, probe: Any) -> None:
    """The repr shows the state, for logs and failing tests."""
    operation = probe(50)
    assert repr(operation) == "<Probe waiting timeout=50ms>"
    world.purgatory.try_complete_else_watch(operation, ["a", "b"])
    assert "watched=2 delayed=1" in repr(world.purgatory)
    operation.force_complete()
    assert repr(operation) == "<Probe forced timeout=50ms>"

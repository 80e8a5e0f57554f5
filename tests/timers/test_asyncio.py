"""Timers on event loops of several kinds. Callbacks may be coroutines, and all timers share one handle of the loop."""

from __future__ import annotations

import asyncio
import time
from contextvars import ContextVar
from typing import Any

import pytest

from wheel_sched.testing.virtual_loop import VirtualEventLoop
from wheel_sched.timers import AsyncTimer
from wheel_sched.wheel import EntryState


def test_a_coroutine_function_is_awaited(loops: Any) -> None:
    """On every kind of loop, a coroutine function as callback is awaited. Its timer is RUNNING until the coroutine
    ends."""
    timer, steps = loops.timer(), []
    name: ContextVar[str] = ContextVar("name", default="nobody")

    async def run(argument: str) -> None:
        steps.append((argument, name.get()))
        await asyncio.sleep(0.002)  # the coroutine lasts for several turns of the loop
        steps.append(handle.state)

    token = name.set("caller")
    handle = timer.schedule(1, run, "argument")
    name.reset(token)
    loops.until(lambda: handle.state is EntryState.FIRED)
    assert steps == [("argument", "caller"), EntryState.RUNNING]


def test_any_number_of_timers_costs_the_loop_one_handle(loop_facade: Any) -> None:
    """A thousand timers need one `call_later` of the loop, and none when all timers are cancelled."""
    timer = loop_facade.timer()
    handles = [timer.schedule(1000 - number, print) for number in range(500)]
    handles += [timer.schedule(1000 + number, print) for number in range(500)]
    live = [handle for handle in loop_facade.loop._scheduled if not handle.cancelled()]
    assert len(live) == 1
    for handle in handles:
        handle.cancel()
    loop_facade.pass_ms(2000)
    assert [handle for handle in loop_facade.loop._scheduled if not handle.cancelled()] == []


def test_a_long_batch_lets_the_loop_breathe(loop_facade: Any) -> None:
    """While a thousand timers of one tick run, other callbacks of the loop run in between."""
    timer, events = loop_facade.timer(), []
    for _ in range(1000):
        timer.schedule(5, events.append, "timer")
    timer.schedule(5, loop_facade.loop.call_soon, events.append, "other")

    def first() -> None:
        loop_facade.loop.call_soon(events.append, "other")

    early = timer.schedule(5, first)
    assert early.reschedule(4)
    timer.schedule(4, lambda: loop_facade.clock.advance(1))  # so that all of them are found due at once
    loop_facade.pass_ms(10)
    assert events.count("timer") == 1000
    assert events.index("other") < 999


def test_a_plain_callback_may_return_an_awaitable(loop_facade: Any) -> None:
    """If a plain callback returns an awaitable, here a future, its timer is RUNNING until the awaitable is done."""
    timer = loop_facade.timer()
    future = loop_facade.loop.create_future()
    handle = timer.schedule(1, lambda: future)
    loop_facade.pass_ms(5)
    assert handle.state is EntryState.RUNNING
    future.set_result(None)
    loop_facade.pass_ms(1)
    assert handle.state is EntryState.FIRED


def test_close_leaves_running_coroutines_to_wait_closed(loop_facade: Any) -> None:
    """`close` returns while a callback's coroutine still runs. `wait_closed` returns when the coroutine has ended."""
    timer, steps = loop_facade.timer(), []

    async def run() -> None:
        await asyncio.sleep(0.1)  # virtual time
        steps.append("ended")

    timer.schedule(1, run)
    loop_facade.pass_ms(2)
    assert timer.close() == []
    assert steps == []
    loop_facade.wait(timer.wait_closed())
    assert steps == ["ended"]


def test_a_coroutine_of_the_timer_may_close_it_and_wait(loop_facade: Any) -> None:
    """If a callback's coroutine awaits `wait_closed`, this does not wait for that coroutine itself."""
    timer, steps = loop_facade.timer(), []

    async def run() -> None:
        timer.close()
        await timer.wait_closed()
        steps.append("closed")

    timer.schedule(1, run)
    loop_facade.pass_ms(5)
    assert steps == ["closed"]


def test_it_is_an_async_context_manager() -> None:
    """The end of the `async with` block closes the timer and waits for its callbacks."""
    steps: list[str] = []

    async def run() -> None:
        await asyncio.sleep(0.01)  # still runs when the block ends
        steps.append("ended")

    async def main() -> None:
        async with AsyncTimer() as timer:
            timer.schedule(0, run)
            while len(timer):
                await asyncio.sleep(0)
        assert timer.closed

    asyncio.run(main())
    assert steps == ["ended"]


def test_without_a_loop_there_is_no_timer() -> None:
    """Without a running loop, `AsyncTimer()` raises the error that asyncio raises for its own objects."""
    with pytest.raises(RuntimeError, match="no running event loop"):
        AsyncTimer()


def test_a_loop_whose_clock_stands_still_while_a_callback_works_makes_no_timer_early(facade: Any) -> None:
    """uvloop's `time()` does not change while a callback runs. If a callback works for 20 ms and then schedules a
    timer, the timer's delay is not shortened."""
    timer, ran_ns = facade.timer(), []

    def work() -> None:
        if not facade.virtual:
            time.sleep(0.02)  # the work that the loop's clock does not see
        due_ns = facade.clock.monotonic_ns() + 30_000_000
        timer.schedule(30, lambda: ran_ns.append(facade.clock.monotonic_ns() - due_ns))

    timer.schedule(1, work)
    facade.until(lambda: ran_ns)
    assert ran_ns[0] >= 0


def test_timers_on_a_virtual_loop_are_exact_for_years() -> None:
    """In three virtual years each daily run is in its millisecond, while a sleep of asyncio spans the whole time."""

    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualEventLoop)
        ran: list[int] = []
        async with AsyncTimer() as timer:
            timer.every(86_400_000, lambda: ran.append(loop.clock.monotonic_ms()))
            await asyncio.sleep(3 * 365 * 86400)
        return ran

    with asyncio.Runner(loop_factory=VirtualEventLoop) as runner:
        ran = runner.run(main())
    assert ran == [86_400_000 * number for number in range(1, len(ran) + 1)]
    assert len(ran) >= 3 * 365 - 1

"""The asyncio scheduler runs coroutines on the loop, calls stores in other threads, and sends events on the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from apscheduler.events import (
    EVENT_ALL,
    EVENT_JOB_ADDED,
    EVENT_JOB_ERROR,
    EVENT_JOB_EXECUTED,
    EVENT_JOB_MAX_INSTANCES,
    EVENT_JOB_SUBMITTED,
    EVENT_SCHEDULER_SHUTDOWN,
)
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.memory import MemoryJobStore
from apscheduler.schedulers import SchedulerNotRunningError
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from wheel_sched_apscheduler.schedulers import WheelAsyncIOScheduler

PATIENCE_S = 30.0


class Heard:
    """Records events, and lets coroutines wait for them. `elsewhere` counts events that arrived outside the loop's
    thread."""

    def __init__(self, scheduler: Any, mask: int = EVENT_ALL) -> None:
        self.events: list[Any] = []
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.elsewhere = 0
        scheduler.add_listener(self._note, mask)

    def _note(self, event: Any) -> None:
        self.events.append(event)
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # in a thread of a pool, as in stock APScheduler: the loop must be woken
            self.elsewhere += 1
            self._loop.call_soon_threadsafe(self._changed.set)
        else:
            self._changed.set()

    def of(self, code: int) -> list[Any]:
        return [event for event in self.events if event.code & code]

    async def wait(self, code: int, count: int = 1) -> list[Any]:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.of(code)) < count:
                self._changed.clear()
                await self._changed.wait()
        return self.of(code)


async def ended(scheduler: Any, heard: Heard) -> None:
    scheduler.shutdown()
    await heard.wait(EVENT_SCHEDULER_SHUTDOWN)


def soon(seconds: float = 0.02) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def in_loop(test: Callable[[Any, Heard], Any], paused: bool = False, **options: Any) -> None:
    """Run a test coroutine with a started scheduler."""

    async def main() -> None:
        scheduler = WheelAsyncIOScheduler(timezone=UTC, **options)
        heard = Heard(scheduler)
        scheduler.start(paused=paused)
        try:
            await test(scheduler, heard)
        finally:
            if scheduler.running:
                await ended(scheduler, heard)

    asyncio.run(main())


def test_it_is_what_it_replaces() -> None:
    """Our scheduler is a subclass of APScheduler's, so `isinstance` checks accept it."""
    assert issubclass(WheelAsyncIOScheduler, AsyncIOScheduler)


def test_coroutines_run_on_the_loop_and_functions_off_it() -> None:
    """As in stock APScheduler, coroutines run on the loop, and functions in threads. Listeners get every event on the
    loop."""

    async def test(scheduler: Any, heard: Heard) -> None:
        async def coroutine() -> str:
            await asyncio.sleep(0)
            return threading.current_thread().name

        scheduler.add_job(coroutine, "date", run_date=soon(), id="coroutine")
        scheduler.add_job(lambda: threading.current_thread().name, "date", run_date=soon(), id="function")
        events = await heard.wait(EVENT_JOB_EXECUTED, 2)
        names = {event.job_id: event.retval for event in events}
        assert names["coroutine"] == threading.current_thread().name
        assert names["function"] != threading.current_thread().name
        assert heard.elsewhere == 0

    in_loop(test)


def test_events_come_in_causal_order() -> None:
    """For each of many coroutines, the events arrive in the order added, submitted, executed."""

    async def test(scheduler: Any, heard: Heard) -> None:
        async def nothing() -> None:
            pass

        for number in range(200):
            scheduler.add_job(nothing, "date", run_date=soon(), id=str(number))
        await heard.wait(EVENT_JOB_EXECUTED, 200)
        watched = EVENT_JOB_ADDED | EVENT_JOB_SUBMITTED | EVENT_JOB_EXECUTED
        for number in range(200):
            codes = [event.code for event in heard.of(watched) if event.job_id == str(number)]
            assert codes == [EVENT_JOB_ADDED, EVENT_JOB_SUBMITTED, EVENT_JOB_EXECUTED]

    in_loop(test)


def test_a_failing_coroutine_is_an_event() -> None:
    """The error of the coroutine is in the event, and the scheduler runs the next job."""

    async def test(scheduler: Any, heard: Heard) -> None:
        async def fail() -> None:
            raise ValueError("broken")

        scheduler.add_job(fail, "date", run_date=soon(), id="fails")
        (event,) = await heard.wait(EVENT_JOB_ERROR)
        assert isinstance(event.exception, ValueError)
        scheduler.add_job(lambda: None, "date", run_date=soon())
        await heard.wait(EVENT_JOB_EXECUTED)

    in_loop(test)


def test_a_coroutine_that_runs_has_its_instance_counted() -> None:
    """A coroutine that still runs counts towards `max_instances`. Its next run is refused, with an event."""

    async def test(scheduler: Any, heard: Heard) -> None:
        gate = asyncio.Event()
        scheduler.add_job(gate.wait, "interval", seconds=0.02)
        await heard.wait(EVENT_JOB_MAX_INSTANCES, 2)
        assert len(heard.of(EVENT_JOB_SUBMITTED)) == 1
        gate.set()
        await heard.wait(EVENT_JOB_EXECUTED, 2)

    in_loop(test)


class SlowStore(MemoryJobStore):  # type: ignore[misc]  # APScheduler is untyped
    """A jobstore whose `get_due_jobs` waits until the test sets `answer`. It records the names of the threads that
    wait."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[str] = set()
        self.asked, self.answer = threading.Event(), threading.Event()

    def get_due_jobs(self, now: datetime) -> Any:
        self.threads.add(threading.current_thread().name)
        self.asked.set()
        assert self.answer.wait(PATIENCE_S)
        return super().get_due_jobs(now)


def test_a_slow_store_does_not_hold_up_the_event_loop() -> None:
    """While the scheduler's pass waits for the store, the event loop runs many callbacks."""
    store = SlowStore()

    async def test(scheduler: Any, heard: Heard) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not store.asked.is_set():
                    await asyncio.sleep(0.001)  # until the pass waits; it sends no signal to the loop
                for _ in range(50):
                    await asyncio.sleep(0)
                assert heard.of(EVENT_JOB_SUBMITTED) == []
        finally:
            store.answer.set()
        await asyncio.to_thread(scheduler.add_job, lambda: None, "date", run_date=soon(0))
        await heard.wait(EVENT_JOB_EXECUTED)
        assert threading.current_thread().name not in store.threads

    in_loop(test, jobstores={"default": store})


def test_a_loop_that_stands_still_holds_up_no_other_executor() -> None:
    """While a callback blocks the loop, coroutines wait, and jobs in a pool of threads run."""

    async def test(scheduler: Any, heard: Heard) -> None:
        async def coroutine() -> None:
            pass

        ran = threading.Event()
        for number in range(300):
            scheduler.add_job(coroutine, "date", run_date=soon(-2), id=f"c{number}")
        scheduler.add_job(ran.set, "date", run_date=soon(-1), executor="threads", id="t")
        scheduler.resume()
        assert ran.wait(PATIENCE_S)  # this blocks the loop
        await heard.wait(EVENT_JOB_EXECUTED, 301)

    in_loop(test, paused=True, executors={"threads": ThreadPoolExecutor(1)})


def test_draining_lets_coroutines_end() -> None:
    """`drain_async` waits for coroutines. `drain` on the loop would block the coroutines that it waits for, so it
    raises."""

    async def test(scheduler: Any, heard: Heard) -> None:
        gate = asyncio.Event()
        scheduler.add_job(gate.wait, "date", run_date=soon())
        await heard.wait(EVENT_JOB_SUBMITTED)
        with pytest.raises(RuntimeError, match="drain_async"):
            scheduler.drain()
        assert await scheduler.drain_async(0.05) is False
        gate.set()
        assert await scheduler.drain_async(PATIENCE_S) is True
        assert len(heard.of(EVENT_JOB_EXECUTED)) == 1

    in_loop(test)


@pytest.mark.parametrize("wait", [True, False])
def test_the_end_cancels_coroutines_and_is_told(wait: bool) -> None:
    """On the loop `shutdown` cannot wait for coroutines, so it cancels them. Then it sends its event. A second
    `shutdown` raises."""

    async def test(scheduler: Any, heard: Heard) -> None:
        cancelled = asyncio.Event()

        async def endless() -> None:
            try:
                await asyncio.sleep(3600)  # until it is cancelled
            finally:
                cancelled.set()

        scheduler.add_job(endless, "date", run_date=soon())
        await heard.wait(EVENT_JOB_SUBMITTED)
        await asyncio.sleep(0)
        scheduler.shutdown(wait=wait)
        with pytest.raises(SchedulerNotRunningError):
            scheduler.shutdown()
        await heard.wait(EVENT_SCHEDULER_SHUTDOWN)
        async with asyncio.timeout(PATIENCE_S):
            await cancelled.wait()
        assert not scheduler.running
        assert heard.elsewhere == 0

    in_loop(test)


def test_a_coroutine_may_shut_the_scheduler_down() -> None:
    """A coroutine of the scheduler may call `shutdown`, and so may another thread."""

    async def test(scheduler: Any, heard: Heard) -> None:
        async def end() -> None:
            scheduler.shutdown()

        scheduler.add_job(end, "date", run_date=soon())
        await heard.wait(EVENT_SCHEDULER_SHUTDOWN)

    in_loop(test)

    async def from_outside(scheduler: Any, heard: Heard) -> None:
        await asyncio.to_thread(scheduler.shutdown)
        await heard.wait(EVENT_SCHEDULER_SHUTDOWN)

    in_loop(from_outside)


def test_a_pool_of_threads_beside_the_loop() -> None:
    """One scheduler can have an executor with threads and an executor on the event loop."""

    async def test(scheduler: Any, heard: Heard) -> None:
        async def coroutine() -> None:
            pass

        for number in range(20):
            scheduler.add_job(coroutine, "date", run_date=soon(), id=f"c{number}")
            scheduler.add_job(lambda: None, "date", run_date=soon(), executor="threads", id=f"t{number}")
        await heard.wait(EVENT_JOB_EXECUTED, 40)

    in_loop(test, executors={"threads": ThreadPoolExecutor(2)})


def test_a_closed_loop_is_not_running() -> None:
    """If `asyncio.run` ends without a shutdown, `running` is False; in stock APScheduler it is True. A later `shutdown`
    still works."""

    async def main() -> WheelAsyncIOScheduler:
        scheduler = WheelAsyncIOScheduler(timezone=UTC)
        scheduler.start()
        assert scheduler.running
        return scheduler

    scheduler = asyncio.run(main())
    assert not scheduler.running
    over = threading.Event()
    scheduler.add_listener(lambda _: over.set(), EVENT_SCHEDULER_SHUTDOWN)
    scheduler.shutdown()
    assert over.wait(PATIENCE_S)

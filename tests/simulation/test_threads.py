"""The simulated threads behave as real ones, in an order that the seed decides."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from wheel_sched.simulation.locks import SimulatedCondition, SimulatedEvent, SimulatedLock
from wheel_sched.simulation.queues import SimulatedSimpleQueue, SimulatedThreadPoolExecutor
from wheel_sched.simulation.scheduler import Process, Scheduler, TooManySteps, running
from wheel_sched.simulation.threads import SimulatedThread

SECOND = 1_000_000_000


def run(*works: Callable[[], object], seed: int = 1, until_s: float = 60.0) -> Scheduler:
    """Run each function in its own task of one simulated process."""
    scheduler = running.scheduler = Scheduler(random.Random(seed), 0, most_steps=10_000)
    failed: list[BaseException] = []
    scheduler.on_failure = lambda task, error: failed.append(error)
    process = Process("p", 7)
    for number, work in enumerate(works):
        scheduler.spawn(process, f"work-{number}", work)
    scheduler.run(int(until_s * SECOND))
    if failed:
        raise failed[0]
    return scheduler


def test_a_wait_takes_its_timeout_of_virtual_time() -> None:
    """If a task waits with a timeout and no other task is ready, the virtual clock jumps to the end of the timeout."""
    seen: list[float] = []

    def work() -> None:
        assert not SimulatedEvent().wait(5.0)
        seen.append(running.scheduler.now_ns / SECOND)

    run(work)
    assert seen == [pytest.approx(5.0)]


def test_a_queue_hands_over_in_order_and_a_lock_excludes() -> None:
    """A consumer gets the items of each of two producers in order. Only one producer at a time holds the lock."""
    queue, lock, taken, inside = SimulatedSimpleQueue(), SimulatedLock(), [], []

    def produce(name: str) -> None:
        for number in range(3):
            with lock:
                inside.append(name)
                running.scheduler.sleep_ns(1_000)
                assert inside.pop() == name
            queue.put((name, number))

    def consume() -> None:
        for _ in range(6):
            taken.append(queue.get())

    run(lambda: produce("a"), lambda: produce("b"), consume)
    assert [number for name, number in taken if name == "a"] == [0, 1, 2]
    assert [number for name, number in taken if name == "b"] == [0, 1, 2]


def test_a_condition_wakes_those_that_wait() -> None:
    """`notify` wakes one of three waiting tasks, and `notify_all` wakes the two others."""
    changed, woken = SimulatedCondition(), []

    def wait(name: str) -> None:
        with changed:
            woken.append((name, changed.wait(10)))

    def notify() -> None:
        running.scheduler.sleep_ns(SECOND)
        with changed:
            changed.notify()
        running.scheduler.sleep_ns(SECOND)
        assert len(woken) == 1
        with changed:
            changed.notify_all()

    run(lambda: wait("a"), lambda: wait("b"), lambda: wait("c"), notify)
    assert sorted(woken) == [("a", True), ("b", True), ("c", True)]


def test_a_killed_process_runs_no_more_code() -> None:
    """A killed process runs no more code, not even its `finally` blocks."""
    steps: list[str] = []
    process = Process("victim", 8)

    def victim() -> None:
        try:
            steps.append("began")
            running.scheduler.sleep_ns(10 * SECOND)
            steps.append("went on")
        finally:
            steps.append("cleaned up")

    def killer() -> None:
        running.scheduler.sleep_ns(SECOND)
        process.alive = False

    def begin() -> None:
        running.scheduler.spawn(process, "victim", victim)
        killer()

    run(begin)
    assert steps == ["began"]


def test_a_paused_process_wakes_up_later() -> None:
    """A process sleeps for 1 s and is paused until 7 s. It wakes up at 7 s, although its sleep ended earlier."""
    woken: list[float] = []

    def work() -> None:
        scheduler = running.scheduler
        scheduler.process.paused_until_ns = 7 * SECOND
        scheduler.sleep_ns(SECOND)
        woken.append(scheduler.now_ns / SECOND)

    run(work)
    assert woken == [7.0]


def test_threads_and_executors_run_their_work() -> None:
    """`join` waits for a thread, and an executor runs as many jobs at once as it has workers."""
    running_now, most = [0], [0]

    def job(number: int) -> int:
        running_now[0] += 1
        most[0] = max(most[0], running_now[0])
        running.scheduler.sleep_ns(SECOND)
        running_now[0] -= 1
        return number

    def work() -> None:
        thread = SimulatedThread(target=lambda: running.scheduler.sleep_ns(SECOND))
        thread.start()
        assert thread.is_alive()
        thread.join()
        assert not thread.is_alive()
        with SimulatedThreadPoolExecutor(2) as pool:
            futures = [pool.submit(job, number) for number in range(6)]
        assert [future.result() for future in futures] == list(range(6))

    run(work)
    assert most == [2]


def test_the_seed_decides_the_order() -> None:
    """A seed always gives the same order of tasks, and another seed can give another order."""

    def order(seed: int) -> str:
        seen: list[str] = []

        def work(name: str) -> None:
            for _ in range(3):
                seen.append(name)
                running.scheduler.pause()

        run(lambda: work("a"), lambda: work("b"), seed=seed)
        return "".join(seen)

    orders = [order(seed) for seed in range(20)]
    assert orders == [order(seed) for seed in range(20)]
    assert len(set(orders)) > 1


def test_a_thread_that_runs_in_circles_is_noticed() -> None:
    """If a task loops without waiting, virtual time never passes. The simulator raises `TooManySteps`."""

    def spin() -> None:
        while True:
            running.scheduler.pause()

    with pytest.raises(TooManySteps):
        run(spin)

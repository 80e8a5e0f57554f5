"""`Future` and `wait` of `concurrent.futures`, for simulated threads: a wait takes virtual time."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, Future
from typing import Any, NamedTuple

from wheel_sched.simulation.locks import SimulatedCondition, SimulatedEvent
from wheel_sched.simulation.scheduler import running


class SimulatedFuture(Future[Any]):
    """A simulated `concurrent.futures.Future`."""

    def __init__(self) -> None:
        super().__init__()
        self._condition: Any = SimulatedCondition()


class DoneAndNotDone(NamedTuple):
    """What `wait` returns: the futures that are done, and those that are not."""

    done: set[Future[Any]]
    not_done: set[Future[Any]]


def wait(fs: Iterable[Future[Any]], timeout: float | None = None, return_when: str = ALL_COMPLETED) -> DoneAndNotDone:
    """A simulated `concurrent.futures.wait`. It supports FIRST_COMPLETED and ALL_COMPLETED."""
    if return_when not in (ALL_COMPLETED, FIRST_COMPLETED):
        raise ValueError(f"the simulation does not know return_when={return_when!r}")
    futures = set(fs)
    changed = SimulatedEvent()
    for future in futures:
        future.add_done_callback(lambda _: changed.set())
    until_ns = None if timeout is None else running.scheduler.monotonic_ns() + int(timeout * 1e9)
    while True:
        done = {future for future in futures if future.done()}
        if done == futures or (done and return_when == FIRST_COMPLETED):
            break
        left_s = None if until_ns is None else (until_ns - running.scheduler.monotonic_ns()) / 1e9
        if left_s is not None and left_s <= 0:
            break
        changed.wait(left_s)
        changed.clear()
    return DoneAndNotDone(done, futures - done)

"""The ways to pools of threads and of processes; see `lanes`."""

from __future__ import annotations

import threading
import time
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import TYPE_CHECKING, Any

from apscheduler.executors.pool import BasePoolExecutor, ProcessPoolExecutor, ThreadPoolExecutor

from wheel_sched_apscheduler.schedulers.executor_adapters import AnyLane, Lane, Reports, here
from wheel_sched_apscheduler.schedulers.running import run
from wheel_sched_apscheduler.schedulers.submission import Handover

if TYPE_CHECKING:
    from concurrent.futures import Future

    from apscheduler.executors.base import BaseExecutor

_QUICK_S = 0.0002  # a job that takes less does nothing that another thread could use the time for
_ROW = 32
_FEW = 2


class ThreadLane(Lane):
    """To a pool of threads: one deque, emptied by as many workers as it takes.

    A worker that takes a job hires the next worker first, while something is left in the deque: a slow job holds up
    nobody. After a row of jobs that took no time `_FEW` workers are left, because more of them only wait for each other
    and for the interpreter's lock. Should those few all meet slow jobs then, `tend` sees that nothing moves and hires
    again.
    """

    def __init__(self, executor: ThreadPoolExecutor, reports: Reports) -> None:
        super().__init__(executor, reports)
        self._workers = 0
        self._at_most: int = executor._pool._max_workers
        self._on_its_way = False
        self._counting = threading.Lock()
        self._row = 0  # quick jobs one after the other; it and `_taken` are hints, so that no lock is needed
        self._taken = 0
        self._taken_before = -1

    def tend(self) -> bool:
        if not self._queue or self._workers >= self._at_most:
            return False
        taken = self._taken
        if taken == self._taken_before:
            self._row = 0
            self._hire()
        self._taken_before = taken
        return True

    def _run(self, handovers: list[Handover]) -> None:
        self._queue.extend(handovers)
        with self._counting:  # a worker that leaves has either seen what was put in, or is no longer counted
            wanted = self._wants_more()
        if wanted:
            self._hire()

    def _wants_more(self) -> bool:
        workers = self._workers
        return workers < self._at_most and not self._on_its_way and (workers < _FEW or self._row < _ROW)

    def _hire(self) -> None:
        with self._counting:
            if self._on_its_way or self._workers >= self._at_most or not self._queue:
                return
            self._workers += 1
            self._on_its_way = True
        try:
            self.executor._pool.submit(self._work)
        except RuntimeError as error:  # the pool was shut down behind our back
            if not self._reports.closing:
                self.executor._logger.warning("The thread pool takes no more work: %s", error)
            with self._counting:
                self._workers -= 1
                self._on_its_way = False
                nobody = self._workers == 0
            if nobody:
                self.abandon()

    def _may_leave(self) -> bool:
        """Whether this worker is done: nothing is left, or few are enough. Then it is no longer counted."""
        with self._counting:
            if self._queue and not (self._row >= _ROW and self._workers > _FEW):
                return False
            self._workers -= 1
            return True

    def _work(self) -> None:
        here.working = True
        self._on_its_way = False
        queue, name = self._queue, self.executor._logger.name
        while True:
            if (not queue or (self._row >= _ROW and self._workers > _FEW)) and self._may_leave():
                if queue:  # those that stay may all meet slow jobs, and a scheduler that saw a full pool sleeps
                    self._reports.wakeup()
                break
            try:
                handover = queue.popleft()
            except IndexError:
                continue
            self._taken += 1
            if queue and self._wants_more():
                self._hire()
            begun_s = time.perf_counter()
            try:
                handover.begin()
                events = run(handover.job, handover.alias, handover.run_times, name, handover.lease)
            except BaseException as error:  # what the job raises is in the events; this is about running it
                self._failed(handover, error)
            else:
                self._succeeded(handover, events)
            self._row = self._row + 1 if time.perf_counter() - begun_s < _QUICK_S else 0
        here.working = False


class ProcessLane(Lane):
    """To a pool of processes: a future for each job; a broken pool is replaced, as stock does, and reported."""

    def _run(self, handovers: list[Handover]) -> None:
        for handover in handovers:
            try:
                future = self._submit(handover)
            except Exception as error:
                self._failed(handover, error)
            else:
                future.add_done_callback(partial(self._ended, handover))

    def _submit(self, handover: Handover) -> Future[Any]:
        executor = self.executor
        call = (run, handover.job, handover.alias, handover.run_times, executor._logger.name, handover.lease)
        try:
            future: Future[Any] = executor._pool.submit(*call)
        except BrokenProcessPool:
            executor._logger.warning("Process pool is broken; replacing pool with a fresh instance")
            executor._pool = type(executor._pool)(executor._pool._max_workers, **executor.pool_kwargs)
            future = executor._pool.submit(*call)
        return future

    def _ended(self, handover: Handover, future: Future[Any]) -> None:
        here.working = True
        try:
            error = future.exception()
            if error is None:
                self._succeeded(handover, future.result())
            else:
                self._failed(handover, error)
        finally:
            here.working = False


def lane_to(executor: BaseExecutor, reports: Reports) -> Lane:
    """The fastest way to `executor` that keeps what its class promises."""
    unchanged = getattr(type(executor), "_do_submit_job", None)
    if isinstance(executor, ThreadPoolExecutor) and unchanged is BasePoolExecutor._do_submit_job:
        return ThreadLane(executor, reports)
    if isinstance(executor, ProcessPoolExecutor) and unchanged is ProcessPoolExecutor._do_submit_job:
        return ProcessLane(executor, reports)
    return AnyLane(executor, reports)

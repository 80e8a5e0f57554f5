"""What the three schedulers share: the loop, the pass, pausing, draining and the end.

One thread owns the loop. A pass visits each job store once and takes a batch; the scheduler's lock is held while a
store is asked and released while jobs are handed over, so that `add_job` from elsewhere waits for one batch at most.
Nothing a store or a listener raises ends the loop.

Everything else of a stock scheduler stays: `add_job`, `modify_job`, events, listeners, executors and job stores are
APScheduler's own, and these classes are subclasses of its classes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from apscheduler.events import EVENT_JOB_REMOVED, EVENT_SCHEDULER_SHUTDOWN, SchedulerEvent
from apscheduler.schedulers import SchedulerAlreadyRunningError, SchedulerNotRunningError
from apscheduler.schedulers.base import STATE_PAUSED, STATE_RUNNING, STATE_STOPPED, BaseScheduler

from wheel_sched.errors import ConfigError
from wheel_sched_apscheduler.schedulers.alarm import Alarm
from wheel_sched_apscheduler.schedulers.claiming_source import BatchFeed
from wheel_sched_apscheduler.schedulers.executor_adapters import Lane, inside_a_job
from wheel_sched_apscheduler.schedulers.pool_adapters import lane_to
from wheel_sched_apscheduler.schedulers.stock_source import StockFeed, utc_now
from wheel_sched_apscheduler.settings import whole
from wheel_sched_apscheduler.stores.contract import BatchStore

if TYPE_CHECKING:
    from apscheduler.executors.base import BaseExecutor
    from apscheduler.job import Job

    from wheel_sched_apscheduler.schedulers.submission import Handover

_NEVER = float("inf")
_TEND_S = 0.01  # between two looks at a lane that has more to do than workers
_LOOK_S = 0.05  # while draining: executors that tell nobody when they have finished are looked at this often


class WheelScheduler(BaseScheduler):
    """Base of the schedulers here; use one of its subclasses.

    Takes what a stock scheduler takes, and:

    Args:
        batch: jobs taken from a store at a time; it bounds how long the scheduler's lock is held. Defaults to 250, for
            asyncio to 32.
        max_in_flight: jobs of one of our stores that are handed over to one executor and have not ended, at which
            that executor gets no more: the rest stays in the store, for other processes. Defaults to 2,000.
        job_defaults: as in stock, but `misfire_grace_time` defaults to None: nothing is dropped for being late. A
            grace counts from the moment a job is claimed, not from when a worker is free.

    Thread rules: every public method may be called from any thread, also from inside a job or a listener.
    """

    closing = False
    default_batch = 250
    drives_batches = True  # our stores need not listen to events: they are told how each hand-over ended

    def __init__(self, gconfig: dict[str, Any] | None = None, **options: Any) -> None:
        self._alarm = Alarm()
        self._feeds: dict[str, StockFeed | BatchFeed] = {}
        self._lanes: dict[str, Lane] = {}
        self._leaving: dict[tuple[str, str], Handover] = {}  # jobs in their last run
        self._hushed = threading.local()
        self._passing = threading.Lock()
        self._waiter: threading.Event | None = None
        self._owner: threading.Thread | None = None
        self._left = threading.Event()
        self._ending = threading.Lock()
        super().__init__(gconfig or {}, **options)

    def __repr__(self) -> str:
        state = {STATE_STOPPED: "stopped", STATE_RUNNING: "running", STATE_PAUSED: "paused"}[self.state]
        if state != "stopped" and not self.running:
            state = "dead"
        stores = ",".join(self._jobstores)
        return f"<{type(self).__name__} {state} stores=[{stores}] busy={self._busy()}>"

    def _configure(self, config: dict[str, Any]) -> None:
        problems: list[str] = []
        self._batch = whole("batch", config.pop("batch", self.default_batch), 1, None, problems)
        self._max_in_flight = whole("max_in_flight", config.pop("max_in_flight", 2_000), 1, None, problems)
        if problems:
            raise ConfigError(problems)
        config["job_defaults"] = {"misfire_grace_time": None, **config.get("job_defaults", {})}
        super()._configure(config)

    @property
    def running(self) -> bool:
        """Whether it was started, not shut down, and its loop is alive: False after a fork, and when the thread of a
        blocking scheduler was interrupted."""
        if self.state == STATE_STOPPED or self._left.is_set():
            return False
        return self._owner is None or self._owner.is_alive()

    # ---- waking up

    def wakeup(self) -> None:
        """Have the loop look at its stores now. From any thread."""
        if not getattr(self._hushed, "on", False):
            self._alarm.ring()

    def resume(self) -> None:
        super().resume()
        self._alarm.ring()

    @contextmanager
    def _hush(self) -> Iterator[None]:
        """Calls of `wakeup` in this thread do nothing: who changes a job rings for its run time instead."""
        before = getattr(self._hushed, "on", False)
        self._hushed.on = True
        try:
            yield
        finally:
            self._hushed.on = before

    def _ring_for(self, job: Job) -> None:
        run_time = getattr(job, "next_run_time", None)
        if run_time is not None and self.state == STATE_RUNNING:
            self._alarm.ring_by(run_time.timestamp())

    def _real_add_job(self, job: Job, jobstore_alias: str, replace_existing: bool) -> None:
        before = self._leaving.pop((jobstore_alias, job.id), None)
        if before is not None:  # the new job must not seem to be the one that is gone
            self.announce([before.removed()])
        with self._hush():
            super()._real_add_job(job, jobstore_alias, replace_existing)
        self._forget(jobstore_alias, job.id)
        self._ring_for(job)

    def modify_job(self, job_id: str, jobstore: str | None = None, **changes: Any) -> Job:
        with self._jobstores_lock:  # no slice of a batch between the change and its being known here
            with self._hush():
                job = super().modify_job(job_id, jobstore, **changes)
            self._forget(jobstore, job_id)
        self._ring_for(job)
        return job

    def remove_job(self, job_id: str, jobstore: str | None = None) -> None:
        with self._jobstores_lock:
            super().remove_job(job_id, jobstore)
            self._forget(jobstore, job_id)

    def remove_all_jobs(self, jobstore: str | None = None) -> None:
        with self._jobstores_lock:
            super().remove_all_jobs(jobstore)
            self._forget(jobstore, None)

    def _forget(self, alias: str | None, job_id: str | None) -> None:
        for name, feed in list(self._feeds.items()):
            if alias in (None, name):
                feed.forget(job_id)

    # ---- the loop

    def _before_start(self) -> None:
        if self.state != STATE_STOPPED:
            raise SchedulerAlreadyRunningError
        self._alarm = Alarm()
        self._left = threading.Event()
        self._owner = None
        self.closing = False
        self._feeds.clear()
        self._leaving.clear()
        self._lanes.clear()

    def _main_loop(self) -> None:
        self._owner = threading.current_thread()
        try:
            while not self.closing:
                try:
                    wait_s = self._process_jobs()
                except Exception:
                    self._logger.exception(
                        "A pass of the scheduler failed; next try in %g s", self.jobstore_retry_interval
                    )
                    wait_s = self.jobstore_retry_interval
                if not self.closing:
                    self._alarm.sleep(_NEVER if wait_s is None else time.time() + wait_s)
        finally:
            self._left.set()

    def _process_jobs(self) -> float | None:
        """One pass: at most one batch of each store.

        Returns:
            Seconds until the next pass is wanted; None: not before somebody rings.
        """
        head_s = _NEVER
        with self._passing:
            if self.state != STATE_RUNNING or self.closing:
                return self._tend()
            for alias in list(self._jobstores):
                with self._jobstores_lock:
                    feed = self._feed(alias)
                    batch = feed.take(utc_now(), self._batch) if feed is not None and feed.locked else None
                if feed is None:
                    continue
                if batch is None:
                    with self._hush():  # the batch says when to come again
                        batch = feed.take(utc_now(), self._batch)
                handovers = batch.handovers
                if self.closing or self.state != STATE_RUNNING:
                    handovers = feed.put_back(handovers)
                if handovers:
                    self._hand_over(handovers)
                if batch.head_s is not None:
                    head_s = min(head_s, batch.head_s)
            tend_s = self._tend()
        wait_s = None if head_s == _NEVER else max(0.0, head_s - time.time())
        return wait_s if tend_s is None or (wait_s is not None and wait_s < tend_s) else tend_s

    def _tend(self) -> float | None:
        """In how many seconds a lane wants to be looked at again."""
        wanted = [lane.tend() for lane in list(self._lanes.values())]
        return _TEND_S if any(wanted) else None

    def _feed(self, alias: str) -> StockFeed | BatchFeed | None:
        store = self._jobstores.get(alias)
        if store is None:
            self._feeds.pop(alias, None)
            return None
        feed = self._feeds.get(alias)
        if feed is None or feed.store is not store:
            executors, retry_s = self._executors, self.jobstore_retry_interval
            if isinstance(store, BatchStore):
                feed = BatchFeed(store, alias, executors, self._alarm.ring, retry_s, self._max_in_flight, self._logger)
            else:
                feed = StockFeed(store, alias, executors, retry_s, self._logger)
            self._feeds[alias] = feed
        return feed

    def _hand_over(self, handovers: list[Handover]) -> None:
        by_executor: dict[str, list[Handover]] = {}
        for handover in handovers:
            if handover.last:
                self._leaving[handover.alias, handover.job.id] = handover
            by_executor.setdefault(handover.job.executor, []).append(handover)
        for name, group in by_executor.items():
            executor = self._executors.get(name)
            if executor is None:  # removed since the batch was taken
                error = LookupError(f"executor {name!r} was removed before the job reached it")
                for handover in group:
                    events = [*handover.missed(), *handover.failed(error)]
                    handover.end(events)
                    self.announce(events)
                    self.parted(handover)
                continue
            self._lane(name, executor).put(group)

    def _lane(self, alias: str, executor: BaseExecutor) -> Lane:
        lane = self._lanes.get(alias)
        if lane is None or lane.executor is not executor:
            lane = self._lanes[alias] = self._lane_to(executor)
        return lane

    def _lane_to(self, executor: BaseExecutor) -> Lane:
        return lane_to(executor, self)

    # ---- what lanes report

    def wants(self, mask: int) -> bool:
        """Whether anybody listens to events of `mask`."""
        return any(mask & wanted for _, wanted in self._listeners)

    def announce(self, events: list[SchedulerEvent]) -> None:
        """Hand events to the listeners, in order."""
        for event in events:
            self._dispatch_event(event)

    def parted(self, handover: Handover, gone: bool = True) -> None:
        """A job's last run has ended, as its events have told; unless it is `gone`, it comes again."""
        known = self._leaving.pop((handover.alias, handover.job.id), None)
        if known is not None and gone and self.wants(EVENT_JOB_REMOVED):
            self.announce([known.removed()])

    def finished(self) -> None:
        """A hand-over has ended."""
        waiter = self._waiter
        if waiter is not None:
            waiter.set()

    def _dispatch_event(self, event: SchedulerEvent) -> None:
        if self._listeners:
            super()._dispatch_event(event)

    # ---- draining and the end

    def _busy(self) -> bool:
        return any(bool(executor._instances) for executor in list(self._executors.values()))

    def drain(self, timeout: float | None = None) -> bool:
        """Pause, and wait until everything handed over has ended.

        Args:
            timeout: how long to wait, in seconds. Defaults to None: as long as it takes.

        Returns:
            Whether everything has ended. The scheduler stays paused either way: `resume` it, or `shutdown`.

        Raises:
            SchedulerNotRunningError: it was not started.
            RuntimeError: called from inside a job or the scheduler's own thread, which cannot wait for itself.
        """
        if self._would_wait_for_itself():
            raise RuntimeError("drain waits for running jobs: call it from outside of jobs; nothing was changed")
        self.pause()
        end_s = _NEVER if timeout is None else time.monotonic() + timeout
        self._waiter = waiter = threading.Event()
        try:
            with self._passing:  # the pass under way hands over what it has taken
                pass
            while self._busy():
                left_s = end_s - time.monotonic()
                if left_s <= 0:
                    return False
                waiter.wait(min(left_s, _LOOK_S))
                waiter.clear()
            return True
        finally:
            self._waiter = None

    def shutdown(self, wait: bool = True) -> None:
        """End the loop, then the executors, then the job stores.

        Jobs that run meanwhile may use the scheduler as before: no lock is held while they are waited for, and what
        they add is stored. Called from inside a job with `wait`, it returns at once and the end goes on in a thread of
        its own, because a job cannot wait for itself.

        Args:
            wait: whether to wait for jobs that run or were handed over. Defaults to True.

        Raises:
            SchedulerNotRunningError: it was not started, or is being shut down.
        """
        self._begin_the_end()
        if wait and self._would_wait_for_itself():
            threading.Thread(target=self._end, args=(True,), name="wheel-sched-shutdown", daemon=False).start()
        else:
            self._end(wait)

    def _would_wait_for_itself(self) -> bool:
        return inside_a_job() or (threading.current_thread() is self._owner and not self._left.is_set())

    def _begin_the_end(self) -> None:
        with self._ending:
            if self.state == STATE_STOPPED or self.closing:
                raise SchedulerNotRunningError
            self.closing = True
        self._alarm.ring()

    def _end(self, wait: bool) -> None:
        if self._owner is not None and threading.current_thread() is not self._owner:
            self._left.wait()
        self._end_executors(wait)
        self._end_stores()

    def _end_executors(self, wait: bool) -> None:
        for alias, executor in list(self._executors.items()):
            try:
                self._end_executor(executor, wait)
            except Exception:
                self._logger.exception("Executor %r did not shut down cleanly", alias)
        if wait:
            for lane in list(self._lanes.values()):
                lane.abandon()

    def _end_executor(self, executor: BaseExecutor, wait: bool) -> None:
        executor.shutdown(wait)

    def _end_stores(self) -> None:
        with self._jobstores_lock:
            self.state = STATE_STOPPED
            for alias, store in self._jobstores.items():
                try:
                    store.shutdown()
                except Exception:
                    self._logger.exception("Job store %r did not shut down cleanly", alias)
        self._logger.info("Scheduler has been shut down")
        self.announce([SchedulerEvent(EVENT_SCHEDULER_SHUTDOWN)])

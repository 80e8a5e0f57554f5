"""WheelScheduler: the part that our three schedulers share: the loop, the pass, pausing, draining and the shutdown.

One thread runs the loop. In a pass, the loop takes one batch of jobs from each jobstore, and submits it. The loop holds
the scheduler's lock while it calls a stock jobstore, and frees it while it submits jobs. So `add_job` in another thread
waits for one batch at most, or for a stock jobstore that reads all due jobs. No error of a jobstore or a listener ends
the loop.

Everything else is APScheduler's own: `add_job`, `modify_job`, events, listeners, executors and jobstores. Our
schedulers are subclasses of its schedulers.
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
from wheel_sched_apscheduler.schedulers.claiming_source import ClaimingJobSource
from wheel_sched_apscheduler.schedulers.executor_adapters import ExecutorAdapter, adapter_for, inside_a_job
from wheel_sched_apscheduler.schedulers.stock_source import StockJobSource, utc_now
from wheel_sched_apscheduler.settings import whole
from wheel_sched_apscheduler.stores.scheduler_pass import ClaimingStore

if TYPE_CHECKING:
    from apscheduler.executors.base import BaseExecutor
    from apscheduler.job import Job

    from wheel_sched_apscheduler.schedulers.submission import Submission

_NEVER = float("inf")
_CHECK_S = 0.01  # between two checks of an adapter that has more jobs than workers
_POLL_S = 0.05  # between two checks in `drain`, because some executors do not report that they are done


class WheelScheduler(BaseScheduler):
    """Base of our schedulers; use one of its subclasses.

    Accepts the settings of a stock scheduler, and these:

    Args:
        batch: number of jobs that are taken from a jobstore at a time, or from each of its shards; at most 500 from a
            `RedisWheelJobStore`. Defaults to 250, for asyncio to 32.
        max_in_flight: how many jobs of one of our jobstores an executor may run or queue at a time. Further jobs
            stay in the store, where other processes may claim them. Defaults to 2,000.
        job_defaults: the defaults of jobs, as APScheduler's schedulers take them. But `misfire_grace_time` defaults to
            None: no late run is dropped. Lateness is measured when a job is claimed, not when a worker is free.

    Raises:
        ConfigError: `batch` or `max_in_flight` is wrong.

    Threads: any thread may call any public method, also from inside a job or a listener.
    """

    closing = False
    default_batch = 250
    drives_batches = True  # tells our jobstores that this scheduler reports each end, so they need no events

    def __init__(self, gconfig: dict[str, Any] | None = None, **options: Any) -> None:
        self._alarm = Alarm()
        self._sources: dict[str, StockJobSource | ClaimingJobSource] = {}
        self._adapters: dict[str, ExecutorAdapter] = {}
        self._last_runs: dict[tuple[str, str], Submission] = {}  # jobs in their last run
        self._quiet = threading.local()
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
        """Whether the scheduler was started, was not shut down, and its loop is alive.

        False after a fork, and when the thread of a blocking scheduler was interrupted."""
        if self.state == STATE_STOPPED or self._left.is_set():
            return False
        return self._owner is None or self._owner.is_alive()

    # ---- waking up

    def wakeup(self) -> None:
        """Have the loop make a pass now, unless the scheduler is paused. Any thread may call it."""
        if not getattr(self._quiet, "on", False):
            self._alarm.ring()

    def resume(self) -> None:
        super().resume()
        self._alarm.ring()

    @contextmanager
    def _without_wakeups(self) -> Iterator[None]:
        """In this block, `wakeup` does nothing in this thread. The caller sets the alarm itself, see `_ring_for`."""
        before = getattr(self._quiet, "on", False)
        self._quiet.on = True
        try:
            yield
        finally:
            self._quiet.on = before

    def _ring_for(self, job: Job) -> None:
        run_time = getattr(job, "next_run_time", None)
        if run_time is not None and self.state == STATE_RUNNING:
            self._alarm.ring_by(run_time.timestamp())

    def _real_add_job(self, job: Job, jobstore_alias: str, replace_existing: bool) -> None:
        before = self._last_runs.pop((jobstore_alias, job.id), None)
        if before is not None:  # listeners must not confuse the new job with the old one
            self.announce([before.removed()])
        with self._without_wakeups():
            super()._real_add_job(job, jobstore_alias, replace_existing)
        self._forget(jobstore_alias, job.id)
        self._ring_for(job)

    def modify_job(self, job_id: str, jobstore: str | None = None, **changes: Any) -> Job:
        with self._jobstores_lock:  # no part of a batch may be taken between the change and `_forget`
            with self._without_wakeups():
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
        for name, source in list(self._sources.items()):
            if alias in (None, name):
                source.forget(job_id)

    # ---- the loop

    def _before_start(self) -> None:
        if self.state != STATE_STOPPED:
            raise SchedulerAlreadyRunningError
        self._alarm = Alarm()
        self._left = threading.Event()
        self._owner = None
        self.closing = False
        self._sources.clear()
        self._last_runs.clear()
        self._adapters.clear()

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
        """Make one pass, which takes at most one batch from each jobstore.

        Returns:
            Seconds until the next pass; None = when the alarm rings.
        """
        head_s = _NEVER
        with self._passing:
            if self.state != STATE_RUNNING or self.closing:
                return self._check_workers()
            for alias in list(self._jobstores):
                with self._jobstores_lock:
                    source = self._source(alias)
                    batch = source.take(utc_now(), self._batch) if source is not None and source.locked else None
                if source is None:
                    continue
                if batch is None:
                    with self._without_wakeups():  # the batch says when to make the next pass
                        batch = source.take(utc_now(), self._batch)
                submissions = batch.submissions
                if self.closing or self.state != STATE_RUNNING:
                    submissions = source.put_back(submissions)
                if submissions:
                    self._submit_all(submissions)
                if batch.head_s is not None:
                    head_s = min(head_s, batch.head_s)
            check_s = self._check_workers()
        wait_s = None if head_s == _NEVER else max(0.0, head_s - time.time())
        return wait_s if check_s is None or (wait_s is not None and wait_s < check_s) else check_s

    def _check_workers(self) -> float | None:
        """The seconds until the adapters need another check; None = they need none."""
        needed = [adapter.check_workers() for adapter in list(self._adapters.values())]
        return _CHECK_S if any(needed) else None

    def _source(self, alias: str) -> StockJobSource | ClaimingJobSource | None:
        store = self._jobstores.get(alias)
        if store is None:
            self._sources.pop(alias, None)
            return None
        source = self._sources.get(alias)
        if source is None or source.store is not store:
            executors, retry_s = self._executors, self.jobstore_retry_interval
            if isinstance(store, ClaimingStore):
                source = ClaimingJobSource(
                    store, alias, executors, self._alarm.ring, retry_s, self._max_in_flight, self._logger
                )
            else:
                source = StockJobSource(store, alias, executors, retry_s, self._logger)
            self._sources[alias] = source
        return source

    def _submit_all(self, submissions: list[Submission]) -> None:
        by_executor: dict[str, list[Submission]] = {}
        for submission in submissions:
            if submission.last:
                self._last_runs[submission.alias, submission.job.id] = submission
            by_executor.setdefault(submission.job.executor, []).append(submission)
        for name, group in by_executor.items():
            executor = self._executors.get(name)
            if executor is None:  # the executor was removed after the batch was taken
                error = LookupError(f"executor {name!r} was removed before the job reached it")
                for submission in group:
                    events = [*submission.missed(), *submission.failed(error)]
                    submission.end(events)
                    self.announce(events)
                    self.last_run_ended(submission)
                continue
            self._adapter(name, executor).submit(group)

    def _adapter(self, alias: str, executor: BaseExecutor) -> ExecutorAdapter:
        adapter = self._adapters.get(alias)
        if adapter is None or adapter.executor is not executor:
            adapter = self._adapters[alias] = self._adapter_for(executor)
        return adapter

    def _adapter_for(self, executor: BaseExecutor) -> ExecutorAdapter:
        return adapter_for(executor, self)

    # ---- reports of adapters

    def wants(self, mask: int) -> bool:
        """Whether there is a listener for an event code in `mask`."""
        return any(mask & wanted for _, wanted in self._listeners)

    def announce(self, events: list[SchedulerEvent]) -> None:
        """Hand events to the listeners, in order."""
        for event in events:
            self._dispatch_event(event)

    def last_run_ended(self, submission: Submission, gone: bool = True) -> None:
        """Implements `Reports.last_run_ended`."""
        known = self._last_runs.pop((submission.alias, submission.job.id), None)
        if known is not None and gone and self.wants(EVENT_JOB_REMOVED):
            self.announce([known.removed()])

    def finished(self) -> None:
        """Wake `drain`, if it waits for the end of submissions."""
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
        """Pause the scheduler, and wait until all submitted jobs have ended.

        Args:
            timeout: how long to wait, in seconds; a pass under way ends first. Defaults to None: as long as it takes.

        Returns:
            Whether all submitted jobs have ended. The scheduler stays paused in any case: call `resume` or `shutdown`.

        Raises:
            SchedulerNotRunningError: the scheduler was not started.
            RuntimeError: called from inside a job or the scheduler's own thread, which cannot wait for itself.
        """
        if self._would_wait_for_itself():
            raise RuntimeError("drain waits for running jobs: call it from outside of jobs; nothing was changed")
        self.pause()
        end_s = _NEVER if timeout is None else time.monotonic() + timeout
        self._waiter = waiter = threading.Event()
        try:
            with self._passing:  # a pass under way submits the jobs that it has taken
                pass
            while self._busy():
                left_s = end_s - time.monotonic()
                if left_s <= 0:
                    return False
                waiter.wait(min(left_s, _POLL_S))
                waiter.clear()
            return True
        finally:
            self._waiter = None

    def shutdown(self, wait: bool = True) -> None:
        """End the loop, then the executors, then the jobstores.

        The method holds no lock while it waits for running jobs. So the running jobs may use the scheduler as before,
        and jobs that they add are stored. If a job calls this with `wait`, the call returns at once and another thread
        continues, because a job cannot wait for itself.

        Args:
            wait: whether to wait for submitted jobs. Defaults to True.

        Raises:
            SchedulerNotRunningError: the scheduler was not started, or is being shut down already.
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
            for adapter in list(self._adapters.values()):
                adapter.abandon()

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

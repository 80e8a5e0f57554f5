"""The way from the scheduler to an executor, a batch at a time.

60 to 80 % of a stock scheduler's time goes into handing over each job by itself: a future with its condition, a queue
entry, a callback. Here a batch goes into one deque, and as many futures as there are idle workers empty it, each taking
the next job when it has finished the last: a slow job holds up nobody.

Every way keeps the executor's own count of running instances, so `max_instances` means what it always meant, and every
hand-over ends in an event: also when the executor is gone, a worker process dies or the arguments cannot be sent,
where stock only writes a log line.

Threads: `put` is called by the scheduler's thread alone.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from asyncio import CancelledError
from collections import deque
from typing import TYPE_CHECKING, Protocol

from apscheduler.events import EVENT_JOB_SUBMITTED
from apscheduler.executors.base import MaxInstancesReachedError

from wheel_sched_apscheduler.schedulers.fire import Fire, judged

if TYPE_CHECKING:
    from apscheduler.events import SchedulerEvent
    from apscheduler.executors.base import BaseExecutor

here = threading.local()  # `working` is True in a thread that runs a job or reports its end


def inside_a_job() -> bool:
    """Whether the calling thread runs a job, or reports the end of one: it cannot wait for itself."""
    return getattr(here, "working", False)


class Reports(Protocol):
    """Whoever wants to know what becomes of hand-overs; called from any thread.

    `closing` is True once the scheduler is being shut down.
    """

    closing: bool

    def wants(self, mask: int) -> bool:
        """Whether anybody listens to events of `mask`."""

    def announce(self, events: list[SchedulerEvent]) -> None:
        """Hand events to the listeners, in order."""

    def finished(self) -> None:
        """One hand-over has ended, whichever way."""


class Lane(ABC):
    """The way to one executor.

    Args:
        executor: where jobs run; started.
        reports: who hears of submissions, refusals and failures.
    """

    def __init__(self, executor: BaseExecutor, reports: Reports) -> None:
        self.executor = executor
        self._reports = reports
        self._queue: deque[Fire] = deque()  # handed over, not begun

    def put(self, fires: list[Fire]) -> None:
        """Hand these over. What has too many instances running is refused, by event; the rest runs."""
        accepted, refused = [], []
        instances = self.executor._instances
        with self.executor._lock:
            for fire in fires:
                job = fire.job
                running = instances.get(job.id, 0)
                if running >= job.max_instances:
                    refused.append(fire)
                else:
                    instances[job.id] = running + 1
                    accepted.append(fire)
        self._tell(accepted, refused)
        if accepted:
            self._run(accepted)

    @property
    def busy(self) -> bool:
        """Whether something handed over has not ended."""
        return bool(self.executor._instances)

    def abandon(self) -> None:
        """Give up what was handed over and has not begun; called at the end, when nothing will begin any more."""
        while self._queue:
            self._dropped(self._queue.popleft())

    @abstractmethod
    def _run(self, fires: list[Fire]) -> None:
        """Have them run; an exception means none of them will."""

    def _tell(self, accepted: list[Fire], refused: list[Fire]) -> None:
        events = [fire.submitted() for fire in accepted] if self._reports.wants(EVENT_JOB_SUBMITTED) else []
        for fire in refused:
            self.executor._logger.warning(
                'Execution of job "%s" skipped: maximum number of running instances reached (%d)',
                fire.job,
                fire.job.max_instances,
            )
            events.append(fire.refused())
        if events:
            self._reports.announce(events)
        for _ in refused:
            self._reports.finished()

    def _succeeded(self, fire: Fire, events: list[SchedulerEvent]) -> None:
        self.executor._run_job_success(fire.job.id, events)
        self._reports.finished()

    def _failed(self, fire: Fire, error: BaseException) -> None:
        self.executor._run_job_error(fire.job.id, error, error.__traceback__)
        self._reports.announce(fire.failed(error))
        self._reports.finished()

    def _dropped(self, fire: Fire) -> None:
        """It was never run, or cut short: a store that leases hands it out again, for others it is an error."""
        if fire.leased and self._reports.closing:
            self._succeeded(fire, [])
        else:
            self._failed(fire, CancelledError("the scheduler was shut down before the job ended"))


class AnyLane(Lane):
    """To an executor that is not known here: through its own `submit_job`, one job at a time."""

    def put(self, fires: list[Fire]) -> None:
        for fire in fires:
            try:
                self.executor.submit_job(judged(fire.job), fire.run_times)
            except MaxInstancesReachedError:
                self._tell([], [fire])
            except Exception as error:
                self.executor._logger.exception('Error submitting job "%s"', fire.job)
                self._reports.announce(fire.failed(error))
            else:
                self._tell([fire], [])

    def _run(self, fires: list[Fire]) -> None:
        raise NotImplementedError  # `put` does it all

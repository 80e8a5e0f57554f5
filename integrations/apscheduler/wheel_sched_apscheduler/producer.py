"""Producer: adds and removes jobs in a process that runs no scheduler.

It has some of a scheduler's methods. It changes the store by the same atomic scripts as a scheduler, and wakes the
store's schedulers. It starts no thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from apscheduler.job import Job
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.util import undefined

from wheel_sched_apscheduler.stores.redis import RedisWheelJobStore


class Producer:
    """Adds jobs to a jobstore and removes them, without a scheduler.

    Args:
        jobstore: stores the jobs: a `RedisWheelJobStore` with the same settings as in the schedulers.
        timezone: for triggers without a time zone. Defaults to None: the local one.
        job_defaults: misfire_grace_time, coalesce and max_instances of jobs that set none. Defaults to none.
    """

    def __init__(
        self, jobstore: RedisWheelJobStore, *, timezone: Any = None, job_defaults: Mapping[str, Any] | None = None
    ) -> None:
        self.jobstore = jobstore
        options = {} if timezone is None else {"timezone": timezone}
        # this scheduler is never started: it only makes triggers and jobs
        self._maker = BackgroundScheduler(job_defaults=dict(job_defaults or {}), **options)

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Producer {self.jobstore!r}>"

    def make(
        self,
        func: Callable[..., Any] | str,
        trigger: Any = None,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        id: str | None = None,  # noqa: A002 - the name a scheduler's add_job gives it
        name: str | None = None,
        misfire_grace_time: Any = undefined,
        coalesce: Any = undefined,
        max_instances: Any = undefined,
        next_run_time: Any = undefined,
        executor: str = "default",
        **trigger_args: Any,
    ) -> Job:
        """Make a job as `scheduler.add_job` does, and do not store it.

        Raises:
            TypeError, ValueError, LookupError: an argument is wrong, as in `scheduler.add_job`.
        """
        maker = self._maker
        given = {
            "trigger": maker._create_trigger(trigger, trigger_args),
            "executor": executor,
            "func": func,
            "args": tuple(args) if args is not None else (),
            "kwargs": dict(kwargs) if kwargs is not None else {},
            "id": id,
            "name": name,
            "misfire_grace_time": misfire_grace_time,
            "coalesce": coalesce,
            "max_instances": max_instances,
            "next_run_time": next_run_time,
        }
        job = Job(maker, **{key: value for key, value in given.items() if value is not undefined})
        missing = {key: value for key, value in maker._job_defaults.items() if not hasattr(job, key)}
        if not hasattr(job, "next_run_time"):
            missing["next_run_time"] = job.trigger.get_next_fire_time(None, datetime.now(maker.timezone))
        job._modify(**missing)
        return job

    def add_job(
        self,
        func: Callable[..., Any] | str,
        trigger: Any = None,
        *,
        replace_existing: bool = False,
        metadata: Mapping[str, Any] | None = None,
        tags: Sequence[str] = (),
        **options: Any,
    ) -> str:
        """Make and store a job, and return its id. A job that replaces another one keeps its metadata and tags.

        Raises:
            TypeError, ValueError, LookupError: an argument is wrong, see `make`.
            ConflictingIdError: the id exists, and `replace_existing` is False; nothing was changed.
            NotSerializable, Rejected, Forbidden: the job cannot be stored.
            StoreError: the store does not answer or cannot be used. If the error is in doubt, the job may be stored.
        """
        job = self.make(func, trigger, **options)
        self.jobstore.repository.add(job, metadata, tags, replace_existing=replace_existing)
        job_id: str = job.id
        return job_id

    def add_jobs(
        self, jobs: Iterable[Job], *, metadata: Mapping[str, Any] | None = None, tags: Sequence[str] = ()
    ) -> list[str]:
        """Store jobs that `make` has made, see `JobQueries.add_jobs`. Skips ids that exist, and returns these ids."""
        return self.jobstore.add_jobs(list(jobs), metadata=metadata, tags=tags)

    def remove_job(self, job_id: str) -> None:
        """Remove a job.

        Raises:
            JobLookupError: there is no job with this id.
        """
        self.jobstore.remove_job(job_id)

    def close(self) -> None:
        """Release connections. Idempotent."""
        self.jobstore.shutdown()

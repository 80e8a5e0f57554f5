"""RedisWheelJobStore: a jobstore that many scheduler processes share. It keeps the jobs in the delay store.

Any APScheduler 3 scheduler can use it. Each occurrence is handed out to one process, under a lease. With at-least-once
delivery it stays in the store until it has ended: none is lost if a process dies. Jobs are stored as JSON, functions by
names from an allow-list, pickle only if you ask for it. `scheduler_pass` explains how schedulers drive this jobstore.

    repository.JobRepository   the stored jobs: look up, add, change, remove
    tracker.ClaimTracker       the claims of this process, from the claim to the settlement
    RedisWheelJobStore         APScheduler's calls over both, and the threads

Cost. A pass makes one round trip for all its jobs: it settles ended occurrences and claims due ones. It makes more for
at-most-once delivery, and for jobs whose earlier runs are under way. An idle scheduler claims once in `max_sleep_s`. A
blocking read on the server learns of jobs that other processes have made due earlier.

Threads. Any thread may call any method, one at a time makes a pass. The jobstore runs up to three threads: a settler, a
listener, an announcer. If the store does not answer, a pass raises nothing: it gets no jobs and the time to try again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from wheel_sched.errors import ConfigError, StoreError, StoreUnavailable
from wheel_sched.store import DelayStore
from wheel_sched.store.members.announcer import MemberAnnouncer
from wheel_sched_apscheduler.codec import JobCodec
from wheel_sched_apscheduler.codec.signing import Secret, secret_for, warn_once
from wheel_sched_apscheduler.codec.triggers import is_built_in
from wheel_sched_apscheduler.occurrence import Finish, Occurrence
from wheel_sched_apscheduler.run_times import Misfire, earliest, from_ms, in_utc, missed_runs, to_ms, to_us
from wheel_sched_apscheduler.settings import Delivery, InstancesScope, SharedStoreSettings, flag, whole
from wheel_sched_apscheduler.stores.announcing import announcer_of
from wheel_sched_apscheduler.stores.connection import OccurrenceSettler, StoreConnection
from wheel_sched_apscheduler.stores.next_pass import NextPass
from wheel_sched_apscheduler.stores.pending_adds import PendingAdds
from wheel_sched_apscheduler.stores.queries import JobQueries
from wheel_sched_apscheduler.stores.repository import JobRepository
from wheel_sched_apscheduler.stores.scheduler_pass import OccurrenceBatch, SchedulerPassStore
from wheel_sched_apscheduler.stores.tracker import ClaimTracker

NAMESPACE = "apscheduler"
RETRY_S = (0.2, 0.5, 1.0, 2.0)  # pauses before the next pass, after the first, second, ... store error in a row
PASS_SOON_S = 0.2  # after a pass with more due jobs, the next pass comes within this time
QUIET_S = 0.02  # for this time after any other pass, the settler leaves the report of ended runs to the next pass


class RedisWheelJobStore(JobQueries, SchedulerPassStore):
    """A jobstore in Redis or Valkey, which any number of processes may share. Its plugin alias is `wheel-redis`.

    Args:
        url: redis://, rediss://, unix://, embedded:FOLDER or memory:. Defaults to "redis://localhost:6379/0".
        client: instead of a URL, a redis-py client: standalone, from a Sentinel, or of a Cluster. Defaults to None.
        store: instead of both, an open `DelayStore`; the next four arguments do not change it. Defaults to None.
        namespace: prefix of all keys. Defaults to "apscheduler".
        shards: number of shards, fixed when the namespace is created. A cluster spreads them. Defaults to 1.
        durability: how durable an acknowledged write is, see docs/guarantees.md. Defaults to "everysec".
        replicas: how many replicas confirm under "replicated". Defaults to 1.
        codec: reads and writes jobs; replaces the next five arguments. Defaults to None.
        allow, triggers, aliases, allow_pickle: see `JobCodec`.
        secret: signs the jobs, see `JobCodec`. Defaults to None: the environment's WHEEL_SCHED_APS_SECRET; without
            it, for `embedded:FOLDER`, a secret in the folder; else jobs are not signed.
        lease_s: the lease of a claim. When a process dies, its jobs are due again as their leases end. Defaults to 30.
        delivery: "at_most_once" settles an occurrence before it runs, so that a crash loses it. Defaults to
            "at_least_once".
        misfire: when lateness is measured, see `run_times.grace_after_claim`. Defaults to "lenient".
        max_instances_scope: where `max_instances` is counted: "store" = over all processes; "process" = in each
            process, as APScheduler does. Defaults to "store".
        batch: how many jobs of each shard a stock scheduler claims in one pass at most. Defaults to 200.
        max_sleep_s: how long a scheduler sleeps at most, in case a wake-up is lost. Defaults to 10.
        history: how many items of run records are kept, of up to 50 records each; 0 = none. Defaults to 1000.
        quarantine_refusals: the round of refusals that puts a job into quarantine, see `loading`. A process refuses a
            job if it lacks, say, the function, the executor or the secret. Defaults to 10.
        quarantine_after_s: how long after its first refusal a job is quarantined at the earliest. Defaults to 600. A
            job that no process can read is quarantined at once.
        announce_s: how often a process announces its scheduler, for `wheel-sched ps`; 0 = never. Defaults to 10.
        fair: shares due jobs between the values of a tag, see docs/apscheduler.md; "off" ends it. Defaults to None:
            the store decides.

    Raises:
        ConfigError: arguments are wrong; nothing was opened. A wrong target or namespace is found when it is opened.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        client: Any = None,
        store: DelayStore | None = None,
        namespace: str = NAMESPACE,
        shards: int = 1,
        durability: str = "everysec",
        replicas: int = 1,
        codec: JobCodec | None = None,
        allow: Iterable[str | Callable[..., Any]] | None = None,
        triggers: Iterable[type | str] = (),
        aliases: Mapping[str, str] | None = None,
        secret: Secret | None = None,
        allow_pickle: bool = False,
        lease_s: float = 30.0,
        delivery: Delivery = "at_least_once",
        misfire: Misfire = "lenient",
        max_instances_scope: InstancesScope = "store",
        batch: int = 200,
        max_sleep_s: float = 10.0,
        history: int = 1000,
        quarantine_refusals: int = 10,
        quarantine_after_s: float = 600.0,
        announce_s: float = 10.0,
        fair: str | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        problems: list[str] = []
        options: dict[str, Any] = {
            "namespace": namespace,
            "shards": whole("shards", shards, 1, None, problems),
            "durability": durability,
            "replicas": whole("replicas", replicas, 1, None, problems),
        }
        given = {
            "lease_s": lease_s,
            "delivery": delivery,
            "misfire": misfire,
            "max_instances_scope": max_instances_scope,
            "batch": batch,
            "max_sleep_s": max_sleep_s,
            "history": history,
            "quarantine_refusals": quarantine_refusals,
            "quarantine_after_s": quarantine_after_s,
            "announce_s": announce_s,
            "fair": fair,
        }
        count = options["shards"] if store is None else store.shards
        self.settings = SharedStoreSettings.read(given, count, problems)
        allow_pickle = flag("allow_pickle", allow_pickle, problems)
        if sum(target is not None for target in (url, client, store)) > 1:
            problems.append("expected one of url, client and store, got several")
        if problems:
            raise ConfigError(problems)
        target = client if client is not None else url or "redis://localhost:6379/0"
        self.codec = codec or JobCodec(
            allow=allow,
            triggers=triggers,
            aliases=aliases,
            secret=secret if secret is not None else secret_for(target if store is None else store),
            allow_pickle=allow_pickle,
        )
        self.connection = StoreConnection(target, options, store, self.settings.fair)
        parts = (self.connection, self.codec)
        self.tracker = ClaimTracker(
            *parts, self.settings, is_running=self._is_running, lost=self._forget, earlier_due=self._wake_for
        )
        self.repository = JobRepository(*parts, self.tracker.planner_of, counts_runs=max_instances_scope == "store")
        self._pending_adds = PendingAdds(self.repository)
        self._settler: OccurrenceSettler | None = None
        self._announcer: MemberAnnouncer | None = None
        self._failures = 0  # passes in a row to which the store did not answer
        self._pass_until_s = 0.0  # a pass is expected before this, on the monotonic clock
        self._next_pass = NextPass()
        self._closed = False

    # Start and end.

    def start(self, scheduler: Any, alias: str) -> None:
        """Open the store and start the threads. If the store does not answer yet, one of them waits for it.

        Raises:
            StoreError, ConfigError: the store cannot be used, see `store`. The scheduler does not start either.
        """
        super().start(scheduler, alias)
        self._closed = False
        self.connection.logger = self._logger
        if not self.codec.signed and self.connection.target != "memory:":
            warn_once(self._logger, self.codec.allowed)
        self.tracker.history.closing = False
        self._pending_adds = PendingAdds(self.repository, scheduler, self._logger)
        settler = OccurrenceSettler(
            self.connection,
            flush=self._flush_when_quiet,
            extend_leases=self.tracker.extend_leases,
            next_s=self.tracker.next_s,
            earlier_due=self._wake_for,
            opened=self._pending_adds.add_all,
            extend_every_s=self.settings.lease_ms / 3000,
        )
        settler.start()
        self._settler = settler
        self._announcer = announcer_of(self.connection, scheduler, alias, self.tracker, self.settings.announce_s)
        self._announcer.start()

    def shutdown(self) -> None:
        """Report ended occurrences to the store. Running ones keep their leases until the run or the process ends."""
        self._closed = True
        self._plan_rest()
        settler, self._settler = self._settler, None
        self.tracker.history.closing = True  # the next flush writes all of it
        self._pending_adds.close()
        if self._announcer is not None:
            self._announcer.stop()
        if settler is not None:
            try:
                self.tracker.flush()  # now: the process may end as soon as this returns
            except Exception as error:  # also what a client library raises besides its own errors
                self._logger.warning("The last ends could not be reported to the store; these runs repeat: %s", error)
            settler.stop(until=lambda: self.tracker.idle, runs=lambda: self.tracker.runs, then=self._close)
        else:
            self._close()

    def _close(self) -> None:
        with contextlib.suppress(StoreError):
            self.tracker.withdraw()
        self.connection.close()

    def __repr__(self) -> str:
        where = f"namespace={self.connection.options['namespace']}"
        return f"<{type(self).__name__} {where} in_flight={len(self.tracker)} lease={self.settings.lease_ms}ms>"

    # The contract, see `scheduler_pass`.

    def claim_batch(self, now: datetime, limit: int | None = None) -> OccurrenceBatch:
        """Report ended occurrences to the store, and claim those due at `now`: of each shard `limit` or 500 at most."""
        limit = min(limit or self.settings.batch, 500)
        tracker = self.tracker
        with tracker.lock, self._next_pass:
            self._pass_until_s = time.monotonic() + PASS_SOON_S
            if self._closed:  # a stock scheduler's pass may have waited for the shutdown: the store stays closed
                return OccurrenceBatch()
            if not self.connection.is_open and self._settler is not None:  # a pass does not wait for a connection
                return self._failed(now, StoreUnavailable("it did not answer at the start"))
            try:
                asked_ms, asked_s = time.time_ns() // 1_000_000, time.monotonic()
                claims = tracker.claim_due(now, limit)
            except Exception as error:  # also what a client library raises besides its own errors
                return self._failed(now, error)
            self._failures = 0
            occurrences = tracker.load(claims, now, plain_jobs=self.driven)
            for occurrence in occurrences:
                occurrence.job._scheduler, occurrence.job._jobstore_alias = self._scheduler, self._alias
            try:
                tracker.apply_limits(occurrences)
            except Exception as error:  # as above
                self.release(occurrences)
                return self._failed(now, error)
            if occurrences and time.monotonic() - asked_s >= self.settings.lease_ms / 1000:
                self._logger.warning("A claim took longer than its lease: its jobs are put back")
                self.release(occurrences)  # another process may have them
                return OccurrenceBatch([], max(in_utc(now), datetime.now(UTC)))
            if self.settings.delivery == "at_most_once" and occurrences:
                occurrences = self._settle_before_run(occurrences, now)
            more = any(len(claim.items) == limit for claim in claims)
            next_ms = to_us(now) // 1000 if more else tracker.next_claim_ms(claims, asked_ms)
            wake_at = from_ms(self._next_pass.plan(next_ms))
            if not more:
                wake_at += timedelta(milliseconds=tracker.deferral_ms(claims))
            self._pass_until_s = time.monotonic() + (PASS_SOON_S if more else QUIET_S)
            if tracker.waiting:  # jobs that this pass refused, or that were changed during it
                self._notify_settler()
        occurrences.sort(key=lambda occurrence: (to_us(occurrence.scheduled), occurrence.job_id))
        return OccurrenceBatch(occurrences, wake_at, more)

    def _settle_before_run(self, occurrences: Sequence[Occurrence], now: datetime) -> list[Occurrence]:
        """Settle these occurrences before they run, for at-most-once delivery. Returns the occurrences that may run.

        Also returns the occurrences whose executor is unknown. It does not settle these: the driver refuses them.
        """
        executors = getattr(self._scheduler, "_executors", None)
        unknown, planned = [], []
        for occurrence in occurrences:
            if executors is not None and occurrence.job.executor not in executors:
                unknown.append(occurrence)
            elif self._plan(occurrence, now):
                planned.append(occurrence)
        settled, error = self.tracker.settle_before_run(planned)
        if error is not None:
            self._failed(now, error)
        return unknown + settled

    def _plan(self, occurrence: Occurrence, now: datetime) -> bool:
        """Set the run times of an occurrence and the job's next run time. Returns False if the trigger failed."""
        job = occurrence.job
        run_times, following = occurrence.run_times or getattr(job, "fixed", None), None
        try:
            if not run_times:
                run_times, following = missed_runs(job, occurrence.due_at(now))
        except Exception as error:
            self.report_trigger_failure(occurrence, error)
            return False
        occurrence.run_at(run_times)
        if not self.driven:
            job.fixed = run_times
        occurrence.plan(following)
        return True

    def _failed(self, now: datetime, error: Exception) -> OccurrenceBatch:
        if self._failures == 0:
            self._logger.warning("The store does not answer, jobs wait until it does: %s", error)
        wait_s = RETRY_S[min(self._failures, len(RETRY_S) - 1)]
        self._failures += 1
        return OccurrenceBatch([], max(in_utc(now), datetime.now(UTC)) + timedelta(seconds=wait_s))

    def mark_submitted(self, occurrences: Sequence[Occurrence]) -> None:
        """Implements `ClaimingStore.mark_submitted`."""
        if self.driven or self._scheduler is None:
            for occurrence in occurrences:
                occurrence.submitted = True
        if self.settings.delivery == "at_most_once":
            return
        with self.tracker.lock:
            self.tracker.mark_submitted(occurrences)
            for occurrence in occurrences:
                if occurrence.next_run_time is not None:
                    self._next_pass.sooner(to_ms(occurrence.next_run_time))
        if occurrences:
            self._notify_settler()

    def finish(self, occurrence: Occurrence, finish: Finish, error: str = "") -> None:
        """Implements `ClaimingStore.finish`."""
        self.tracker.finish(occurrence, finish, error)
        self._notify_settler()

    def release(self, occurrences: Iterable[Occurrence], delay_ms: int = 0) -> None:
        """Implements `ClaimingStore.release`."""
        for occurrence in occurrences:
            self.tracker.release(occurrence, delay_ms)
        self._notify_settler()

    def report_unknown_executor(self, occurrence: Occurrence) -> None:
        """Refuse the job, see `loading`: other processes may have the executor."""
        self.tracker.refuse(occurrence, f"the scheduler has no executor {occurrence.job.executor!r}")
        self._notify_settler()

    def report_trigger_failure(self, occurrence: Occurrence, error: Exception) -> None:
        """Quarantine a job with a built-in trigger. Refuse any other job: a newer release may repair its trigger."""
        unreadable = is_built_in(occurrence.handle.stored.trigger)
        self.tracker.refuse(occurrence, f"its trigger failed: {error!r}", error=error, unreadable=unreadable)
        self._notify_settler()

    def _notify_settler(self) -> None:
        """Have the settler send everything pending, because the next pass may be far away."""
        if self._settler is not None:
            self._settler.notify()

    def _flush_when_quiet(self) -> None:
        """Call `flush`, unless a pass comes soon. That pass sends everything, and must not wait for the settler."""
        if self._closed or time.monotonic() > self._pass_until_s:  # after a shutdown no pass comes
            self.tracker.flush()

    def _wake_for(self, due_ms: int) -> None:
        """Wake the scheduler if it would sleep beyond this due time. Any thread may call it."""
        scheduler = self._scheduler
        if scheduler is not None and scheduler.running and self._next_pass.earlier(due_ms):
            scheduler.wakeup()

    # APScheduler's calls outside of a pass.

    def _head(self) -> datetime | None:
        return earliest([self.repository.head(), *(each.next_run_time for each in self.tracker.occurrences())])

    def _update(self, job: Any) -> None:
        self.repository.update(job)

    def _remove(self, job_id: str) -> None:
        self.repository.remove(job_id, self.tracker.find(job_id))

    def lookup_job(self, job_id: str) -> Any:
        """The job with this id; None = there is none, or its last run is under way. See `JobRepository.lookup`."""
        job = self.repository.lookup(job_id)
        return None if job is None else self._adopt(job)

    def get_all_jobs(self) -> list[Any]:
        """All jobs by next run time, then id; paused ones last. Leaves out what cannot be loaded, and last runs."""
        return [self._adopt(job) for job in self.repository.all_jobs()]

    def _adopt(self, job: Any) -> Any:
        job._scheduler, job._jobstore_alias = self._scheduler, self._alias
        return job

    def add_job(self, job: Any) -> None:
        """Store a job, in one atomic round trip unless an earlier job with this id still runs.

        Raises:
            ConflictingIdError: a job with this id exists, from this or another process; nothing was changed.
            NotSerializable, Rejected, Forbidden: the job cannot be stored; nothing was stored.
            StoreError: the store does not answer; nothing was stored, unless `in_doubt` is set. Not raised while a
                scheduler starts and the store is not open: the jobstore then keeps the job until the store answers.
        """
        if self.connection.is_open or not self._pending_adds.accepts(job):
            self.repository.add(job)

    def remove_all_jobs(self) -> None:
        """Remove every job. A job whose run ends during the call may stay. A run under way finishes; see `remove`."""
        self.repository.remove_all()

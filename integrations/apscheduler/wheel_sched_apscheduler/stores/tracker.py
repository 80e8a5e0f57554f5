"""ClaimTracker: claims due jobs and reports to the store how their occurrences ended.

`claim_due` makes one round trip, which also carries the pending commands: settlements, splits and marks. `flush` sends
them between two claims, with the history. Of these commands, those that the store did not answer are sent again.

Threads: any thread may call any method. Round trips with claims or settlements hold `lock`, so they reach the store in
order. The caller of `claim_due` and `settle_before_run` holds it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

from wheel_sched.errors import StoreError
from wheel_sched.store import Claim
from wheel_sched.store.core.call import Call, new_token
from wheel_sched.store.core.claim import ClaimDue
from wheel_sched.store.fair_shares import PrepareDue
from wheel_sched_apscheduler.codec import JobCodec
from wheel_sched_apscheduler.occurrence import Finish, Occurrence
from wheel_sched_apscheduler.run_times import floor_ms
from wheel_sched_apscheduler.settings import SharedStoreSettings
from wheel_sched_apscheduler.stores.claims import InFlightClaims
from wheel_sched_apscheduler.stores.connection import StoreConnection
from wheel_sched_apscheduler.stores.layout import PendingCommand, RunWriter
from wheel_sched_apscheduler.stores.loading import ClaimLoader, RefusalPolicy
from wheel_sched_apscheduler.stores.run_records import LimitReached, RunHistory, RunMarks, apply_limits

SEARCHES = 3  # how often a pass looks for jobs of other fair keys, about 200 jobs each time, while due jobs wait
SLOW_CLOCK_MS = 100  # pause before the next claim if a fair job is due by the store's clock, and not by this machine's
ROUNDS = 4  # one round is enough, unless jobs are changed between their claim and their settlement


class ClaimTracker:
    """Claims due jobs, and reports the ends of their occurrences.

    Args:
        connection: the connection to the store.
        codec: reads and writes jobs.
        settings: the settings of the jobstore.
        is_running: returns whether an occurrence runs, as far as this process can see.
        lost: called with an occurrence that its executor has lost. The store hands the occurrence out again.
        earlier_due: called with the earliest due time, in ms, of the items that commands have stored.
    """

    def __init__(
        self,
        connection: StoreConnection,
        codec: JobCodec,
        settings: SharedStoreSettings,
        *,
        is_running: Callable[[Occurrence], bool],
        lost: Callable[[Occurrence], Any],
        earlier_due: Callable[[int], None],
    ) -> None:
        self.lock = threading.RLock()
        self._connection = connection
        self._is_running = is_running
        self._earlier_due = earlier_due
        self._lease_ms = settings.lease_ms
        self._max_sleep_ms = int(settings.max_sleep_s * 1000)
        self._settles_first = settings.delivery == "at_most_once"
        self._counts_all = settings.max_instances_scope == "store"
        self._shares = settings.fair is not None and settings.fair.settings is not None
        self._behind = False  # the last claim found as many due jobs as it asked for, and they are shared
        counts_runs = settings.fair is not None and settings.fair.counts_runs
        writer = RunWriter(codec, connection.shards)
        self._claims = InFlightClaims(writer, settings.lease_ms, lost, counts_runs=counts_runs)
        self._marks = RunMarks(connection.shards, settings.lease_ms)
        self.history = RunHistory(settings.history, settings.lease_ms)
        self.refusals = RefusalPolicy(connection, settings.quarantine_refusals, settings.quarantine_after_ms)
        self._loader = ClaimLoader(codec, connection, self._claims, self.refusals, settings.misfire)
        self._tokens = [new_token() for _ in range(connection.shards)]

    def __len__(self) -> int:
        return len(self._claims)

    # Claiming.

    def claim_due(self, now: datetime, limit: int) -> list[Claim]:
        """Settle ended occurrences, and claim up to `limit` due items of each shard. Returns the answers, by shard.

        Raises:
            StoreError: the store does not answer; the next call repeats this claim.
        """
        now_ms = floor_ms(now)
        commands = self._claims.gather(self._connection.now_ms(), split_due_ms=now_ms) + self._marks.gather()
        calls: list[Call[Any]] = [
            Call(shard, ClaimDue(limit, self._lease_ms, max(now_ms, 0), token=token))
            for shard, token in enumerate(self._tokens)
        ]
        searches: list[Call[Any]] = [
            Call(shard, PrepareDue()) for shard in range(len(calls)) for _ in range(SEARCHES if self._behind else 0)
        ]
        claims: list[Claim] = self._send(commands, [*searches, *calls])[len(searches) :]
        self._behind = self._shares and any(len(claim.items) == limit for claim in claims)
        return claims

    def load(self, claims: Sequence[Claim], now: datetime, *, plain_jobs: bool) -> list[Occurrence]:
        """Make the occurrences that this process must run from the answers of `claim_due`, see `loading`."""
        occurrences = []
        for shard, claim in enumerate(claims):
            self._tokens[shard] = new_token()
            occurrences += self._loader.occurrences_of(claim, shard, now, plain_jobs=plain_jobs)
        return occurrences

    def apply_limits(self, occurrences: Sequence[Occurrence]) -> None:
        """Make executors refuse occurrences whose jobs have `max_instances` runs under way, over all processes.

        Raises:
            StoreError: the store does not answer; nothing was changed.
        """
        if self._counts_all:
            apply_limits(self._connection.store, occurrences)

    def settle_before_run(self, occurrences: Sequence[Occurrence]) -> tuple[list[Occurrence], StoreError | None]:
        """For at-most-once delivery: settle planned occurrences now, so that a crash loses them and repeats none.

        If runs are counted over all processes, the store gets a mark for each occurrence. Processes count these marks
        for `max_instances` while the runs last. An occurrence that is put back later, because of a pause or a full
        executor, is stored again in an item of its own.

        Returns:
            The occurrences that have left the store and may run. And the store's error, if the store kept some.
        """
        for occurrence in occurrences:
            occurrence.handle.running = occurrence.handle.running or self._counts_all
            self._claims.end(occurrence)
        counted = [
            occurrence
            for occurrence in occurrences
            if self._counts_all and not isinstance(occurrence.job.max_instances, LimitReached)
        ]
        marks = self._marks.begin(counted, self._connection.now_ms())
        failure = None
        try:
            for _ in range(ROUNDS):
                commands, marks = marks + self._claims.gather(self._connection.now_ms()), []
                self._send(commands, [])
                if not self._claims.waiting:
                    break
        except StoreError as error:
            failure = error
        settled = []
        for occurrence in occurrences:
            if occurrence.handle.stale or self._claims.in_flight.get(occurrence.handle.item_id) is occurrence:
                self._marks.end(occurrence)  # the store has not settled it, or another process has it
                occurrence.handle.unbegun = True
            else:
                occurrence.handle.gone = True
                settled.append(occurrence)
        return settled, failure

    def next_claim_ms(self, claims: Sequence[Claim], asked_ms: int) -> int:
        """When a job may be due next, in ms since 1970.

        A job is due when both this machine's clock and the store's clock have reached its due time.

        Args:
            claims: the answers to the last claim, one of each shard.
            asked_ms: when the claim was sent, by this machine's clock.
        """
        next_ms = asked_ms + self._max_sleep_ms
        for claim in claims:
            server_ms = claim.now_us // 1000
            self._connection.note_server_time(server_ms, asked_ms)
            if claim.due_head_ms is not None:
                next_ms = min(next_ms, max(claim.due_head_ms, asked_ms + claim.due_head_ms - server_ms))
                if self._shares and asked_ms < claim.due_head_ms <= server_ms:
                    next_ms = min(next_ms, asked_ms + SLOW_CLOCK_MS)
            if claim.lease_head_ms is not None:
                next_ms = min(next_ms, asked_ms + max(claim.lease_head_ms - server_ms, 0) + 1)
        return next_ms

    def deferral_ms(self, claims: Iterable[Claim]) -> int:
        """How much later than the other processes this process claims next. See `loading`."""
        return self.refusals.deferral_ms(claim.due_head_ms for claim in claims)

    # Reports about occurrences. No I/O.

    def occurrences(self) -> list[Occurrence]:
        """The occurrences in flight in this process."""
        with self.lock:
            return list(self._claims.in_flight.values())

    def find(self, job_id: str) -> Occurrence | None:
        """The occurrence of this process that has claimed the record of this job; None when there is none."""
        with self.lock:
            return self._claims.in_flight.get(job_id)

    def planner_of(self, job_id: str, version: int) -> Occurrence | None:
        """The occurrence that this process has claimed from this version of a job, if the next run is planned.

        None: this process has no such occurrence.
        """
        occurrence = self._claims.in_flight.get(job_id)
        if occurrence is not None and occurrence.planned and occurrence.handle.version == version:
            return occurrence
        return None

    def mark_submitted(self, occurrences: Sequence[Occurrence]) -> None:
        """Note that the scheduler submits these occurrences to executors."""
        if not self._settles_first:
            self._claims.submitted(occurrences)

    def finish(self, occurrence: Occurrence, finish: Finish, error: str = "") -> None:
        """Note that an occurrence has ended. Any thread may call it."""
        occurrence.mark_ended(finish, error)
        self.history.note(occurrence)
        if not self._settles_first:
            self._claims.end(occurrence)
        self._marks.end(occurrence)

    def release(self, occurrence: Occurrence, delay_ms: int = 0) -> None:
        """Put an occurrence back. It is due again at its old due time, or after `delay_ms`. Any thread may call it.

        If the occurrence was claimed within its misfire grace time, it is due now, and not at its old due time. The
        loader measures lateness from the time to which a job was put back, so the occurrence is still in time.
        """
        handle = occurrence.handle
        handle.released = True
        self._marks.end(occurrence)
        due_ms = None
        if delay_ms or handle.in_time:
            due_ms = max(self._connection.both_clocks_ms() + delay_ms, handle.due_ms)
        self._claims.release(occurrence, due_ms)

    def refuse(self, occurrence: Occurrence, reason: str, *, error: Any = None, unreadable: bool = False) -> None:
        """Refuse an occurrence that this process cannot run, see `loading`. Any thread may call it.

        Args:
            occurrence: the occurrence.
            reason: why this process cannot run it.
            error: logged with its traceback. Defaults to None.
            unreadable: whether no process can run it. Defaults to False.
        """
        handle = occurrence.handle
        settlement = self.refusals.settlement(handle.item, reason, error=error, unreadable=unreadable)
        self._claims.settle(handle.shard, handle.claim_number, settlement)
        self._claims.in_flight.pop(handle.item_id, None)

    # Reports to the store.

    @property
    def waiting(self) -> bool:
        """Whether commands wait to be sent to the store immediately."""
        return self._claims.waiting

    @property
    def idle(self) -> bool:
        """Whether no occurrence is in flight in this process."""
        return not self._claims.in_flight and not self._marks

    @property
    def runs(self) -> bool:
        """Whether a job still runs in this process. Runs that have ended or were put back do not count."""
        return bool(self._marks) or any(
            occurrence.alive and not occurrence.finished_ms and not occurrence.handle.released
            for occurrence in list(self._claims.in_flight.values())
        )

    def next_s(self) -> float | None:
        """The seconds until there is something to send: 0 = now, None = nothing."""
        now_s = time.monotonic()
        if self._claims.waiting or self._marks.waiting:
            return 0.0
        naps = [self._claims.next_split_s(now_s), self.history.next_s(bool(self._claims), now_s)]
        return min((nap for nap in naps if nap is not None), default=None)

    def flush(self) -> None:
        """Settle ended occurrences in the store, store long runs in items of their own, write history.

        Raises:
            StoreError: the store does not answer. Everything but the announcement is kept for the next call.
        """
        with self.lock:
            now_ms = self._connection.now_ms()
            commands = self._claims.gather(now_ms) + self._marks.gather() + self.history.gather(now_ms)
            if commands:
                self._send(commands, [])
            announcement = self.history.announcement(self._claims.in_flight.values(), now_ms)
            if announcement is not None:
                self._connection.store.replace(announcement, create=True)

    def extend_leases(self) -> None:
        """Extend the leases of this process's runs, and drop the oldest history.

        Raises:
            StoreError: the store does not answer.
        """
        with self.lock:
            now_ms = self._connection.now_ms()
            commands = self._claims.heartbeats(now_ms, self._is_running)
            commands += self._marks.heartbeats(now_ms, self._is_running)
            commands += self.history.trims(self._connection.shards)
            if commands:
                self._send(commands, [], keep=False)

    def withdraw(self) -> None:
        """Delete the announcement: the item in which this process lists its long runs for other processes.

        Raises:
            StoreError: the store does not answer.
        """
        if self.history.announced:
            self._connection.store.cancel([self.history.worker_id])

    def _send(self, commands: Sequence[PendingCommand], calls: Sequence[Call[Any]], *, keep: bool = True) -> list[Any]:
        """Make one round trip. Returns the answers to `calls`. If `keep`, commands that failed are kept for a repeat.

        Raises:
            StoreError: the store did not answer, or one of the answers is an error. Answered commands have been
                handled. The answers to `calls` are lost: repeat the calls with the same tokens.
        """
        try:
            answers = self._connection.store.execute([*(command.call for command in commands), *calls])
        except StoreError:
            if keep:
                self._claims.keep(commands)
            raise
        failed: Exception | None = None
        earliest_ms: int | None = None
        for command, answer in zip(commands, answers, strict=False):
            if isinstance(answer, Exception):
                failed = answer
                if keep:
                    self._claims.keep([command])
                continue
            if command.answered is not None:
                command.answered(answer, command.about)
            head_ms = getattr(answer, "due_head_ms", None)
            if head_ms is not None:
                if head_ms <= answer.now_us // 1000:  # for example, a job waited for the place that is now free
                    head_ms = min(head_ms, time.time_ns() // 1_000_000)  # a slow clock would reach it later
                earliest_ms = head_ms if earliest_ms is None else min(earliest_ms, head_ms)
        for answer in answers[len(commands) :]:
            if isinstance(answer, Exception):
                failed = answer
        if failed is not None:
            raise failed
        if earliest_ms is not None and not calls:
            self._earlier_due(earliest_ms)
        return list(answers[len(commands) :])

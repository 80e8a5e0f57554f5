"""Loading: makes occurrences from the items that a process has claimed, and refuses jobs that the process cannot run.

Some claimed items do not become occurrences:
- the mark of a run whose process has died (`run_records` says what a mark is);
- a run that is still under way in this process;
- a job that was paused or rescheduled during a run whose process has then died;
- a job that this process cannot run.

*Refusals.* If an application runs in several releases, a process may lack the function, the executor or the secret of a
job. This process then refuses the job: it gives the job back, and the job is due again a moment later. For a while this
process claims later than the other processes (`deferral_ms`), so that a process that can run the job claims it first.

A *round* ends when a process claims a job that it has already refused in this round, because the other processes have
then had time to claim it, and after ten refusals. The job waits twice as long after each round, up to 30 s. A ref is a
text by which the store finds items. Two refs of the job hold the number of rounds, the time of the first refusal, the
processes that refused the job in the present round, and the last process and its reason:

    refused, refused:<rounds>:<since, ms>:<random names of processes>:<host:pid> <reason>

A job that was refused for many rounds and for as long as a deployment takes is quarantined. A job that no process of
any configuration can read is quarantined at once. The next run of the job removes these refs, and so does `update_job`.

Threads: any thread may call `RefusalPolicy`; the callers of `ClaimLoader` hold the lock of the `ClaimTracker`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from apscheduler.job import Job
from apscheduler.triggers.date import DateTrigger

from wheel_sched.errors import StoreError
from wheel_sched.escaping import escaped
from wheel_sched.store import Claim, Claimed, Done, Held, Next, Settlement
from wheel_sched_apscheduler.codec import JobCodec, NotHere, Unreadable
from wheel_sched_apscheduler.entries import owner_name
from wheel_sched_apscheduler.occurrence import ClaimedJob, Occurrence
from wheel_sched_apscheduler.run_times import (
    Misfire,
    chosen_grace,
    from_ms,
    from_us,
    grace_after_claim,
    lateness_until,
    to_ms,
    to_us,
)
from wheel_sched_apscheduler.stores.claims import InFlightClaims
from wheel_sched_apscheduler.stores.connection import StoreConnection
from wheel_sched_apscheduler.stores.layout import (
    OCCURRENCE,
    QUARANTINE,
    RUN,
    RUNNING,
    ClaimHandle,
    due_of,
    job_id_of,
    lost_ref,
    read_split_item,
    without_lost,
)

REFUSED = "refused"
BACK_AFTER_MS = 100  # a refused job is due again after this time, which is doubled after each round
BACK_AT_MOST_MS = 30_000
DEFER_MS = 200  # a process that has refused a job claims this much later than the others
DEFER_FOR_S = 60.0  # after its last refusal, a process claims later for this time
DEFER_ROUNDS = 3  # after this many rounds, no process seems able to run the job: then other jobs do not wait for it
_DUES_AT_MOST = 100
_REFUSERS_AT_MOST = 10  # this many refusals in the refs also end a round, because some of the processes may be gone
_REASON_AT_MOST = 90  # characters of the reason in the refs
_LAST_AT_MOST = 120  # characters of the reason and the process together
_LOGGED_AT_MOST = 1000  # characters of the reason in the log and in the quarantine
_ROUNDS_AT_MOST = 1_000_000
_SINCE_AT_MOST_MS = 1 << 47  # the year 6429


@dataclass(frozen=True, slots=True)
class Refusal:
    """How often a waiting job was given back by processes that cannot run it.

    The refusals are counted in rounds. A new round begins when a process refuses the job that it has already refused
    in the present round, or when the present round has `_REFUSERS_AT_MOST` refusals.

    Args:
        rounds: the number of the present round; the first refusal begins round 1.
        since_ms: time of the first refusal, by the store's clock.
        refusers: random names of the processes that refused the job in this round.
        last: process and reason of the last refusal.
    """

    rounds: int
    since_ms: int
    refusers: tuple[str, ...]
    last: str

    def ref(self) -> str:
        return f"{REFUSED}:{self.rounds}:{self.since_ms}:{','.join(self.refusers)}:{self.last}"

    def again(self, refuser: str, last: str) -> Refusal:
        """The state after one more refusal, by `refuser`. This refusal may begin a new round."""
        if refuser in self.refusers or len(self.refusers) >= _REFUSERS_AT_MOST:
            return Refusal(self.rounds + 1, self.since_ms, (refuser,), last)
        return Refusal(self.rounds, self.since_ms, (*self.refusers, refuser), last)


def refusal_of(refs: Sequence[str]) -> Refusal | None:
    """Read the refusal from a job's refs; None when no process has refused the job.

    Everybody who can write to the store can write this ref, so its numbers are kept within bounds.
    """
    for ref in refs:
        if ref.startswith(f"{REFUSED}:"):
            try:
                _, number, since, refusers, last = ref.split(":", 4)
                rounds, since_ms = min(max(int(number), 1), _ROUNDS_AT_MOST), min(max(int(since), 0), _SINCE_AT_MOST_MS)
                return Refusal(rounds, since_ms, tuple(refusers.split(",")), last)
            except ValueError:
                continue
    return None


def without_refusal(refs: Sequence[str]) -> tuple[str, ...]:
    """The refs, without those that `RefusalPolicy` has added."""
    if REFUSED not in refs:
        return tuple(refs)
    return tuple(ref for ref in refs if ref != REFUSED and not ref.startswith(f"{REFUSED}:"))


class RefusalPolicy:
    """Decides whether a job that this process cannot run is given back or quarantined.

    Args:
        connection: gives the store's time and the logger.
        rounds: a job is quarantined only when this round of refusals or a later one begins (see `Refusal`), or when no
            process can read it.
        after_ms: a job is quarantined only if its first refusal was at least this long ago, or no process can read it.
        clock: seconds that never go back. Defaults to `time.monotonic`.
    """

    def __init__(
        self, connection: StoreConnection, rounds: int, after_ms: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._connection = connection
        self.after_ms = after_ms
        self.clock = clock
        self.process_mark = uuid4().hex[:6]  # names this process in the refs of a job
        self._rounds = rounds
        self._defer_until_s = 0.0
        self._dues: deque[int] = deque(maxlen=_DUES_AT_MOST)  # the due times of the jobs that were given back

    def deferral_ms(self, heads: Iterable[int | None]) -> int:
        """How many ms this process delays its next claim, so that others can claim the jobs that it cannot run.

        It does so for a while after it has given back such a job, and when such a job is the next one due. Else 0.

        Args:
            heads: the earliest due time of each shard.
        """
        defers = self.clock() < self._defer_until_s or any(head in self._dues for head in heads)
        return DEFER_MS if defers else 0

    def settlement(self, item: Claimed, reason: str, *, error: Any = None, unreadable: bool = False) -> Settlement:
        """The settlement that gives a claimed item back for other processes, or quarantines it. Logs the decision.

        Args:
            item: the claimed item.
            reason: why this process cannot run it.
            error: logged with its traceback. Defaults to None.
            unreadable: whether no process can run it. Defaults to False.
        """
        logger = self._connection.logger
        reason = escaped(reason[:_LOGGED_AT_MOST])  # the reason quotes stored data
        job_id = job_id_of(item.id)
        now_ms = self._connection.now_ms()
        before = refusal_of(item.refs)
        refusal = self._next_refusal(before, reason, now_ms)
        rounds, waited_ms = refusal.rounds, now_ms - refusal.since_ms
        new_round = before is None or rounds > before.rounds
        if unreadable or (new_round and rounds >= self._rounds and waited_ms >= self.after_ms):
            logger.error("Job %r cannot be run and is quarantined: %s", job_id, reason, exc_info=error)
            how_often = "" if unreadable or rounds == 1 else f" (refused {rounds} times in {waited_ms // 1000} s)"
            return Held(item.id, f"{QUARANTINE}: {reason}{how_often}")
        if rounds <= DEFER_ROUNDS:
            self._defer_until_s = self.clock() + DEFER_FOR_S
        delay_ms = min(BACK_AFTER_MS << min(rounds - 1, 20), BACK_AT_MOST_MS) if new_round else BACK_AFTER_MS
        logger.warning(
            "Job %r cannot be run here and is given back for other processes, round %d: %s", job_id, rounds, reason
        )
        refs = (*without_refusal(item.refs), REFUSED, refusal.ref())
        self._dues.append(now_ms + delay_ms)
        return Next(item.id, now_ms + delay_ms, item.body, item.topic, refs, item.route, version=item.version)

    def _next_refusal(self, before: Refusal | None, reason: str, now_ms: int) -> Refusal:
        printable = "".join(letter if letter.isprintable() else " " for letter in reason)[:_REASON_AT_MOST]
        last = f"{owner_name()} {printable}"[:_LAST_AT_MOST]
        if before is None:
            return Refusal(1, now_ms, (self.process_mark,), last)
        return before.again(self.process_mark, last)


class ClaimLoader:
    """Makes occurrences from claimed items. Settles all other items, except those whose run continues in this process.

    Args:
        codec: reads jobs.
        connection: gives the logger.
        claims: gets the occurrences and settlements.
        refusals: decides about jobs that this process cannot run.
        misfire: see `run_times.grace_after_claim`.
    """

    def __init__(
        self,
        codec: JobCodec,
        connection: StoreConnection,
        claims: InFlightClaims,
        refusals: RefusalPolicy,
        misfire: Misfire,
    ) -> None:
        self._codec = codec
        self._connection = connection
        self._claims = claims
        self._refusals = refusals
        self._misfire: Misfire = misfire

    def occurrences_of(self, claim: Claim, shard: int, now: datetime, *, plain_jobs: bool) -> list[Occurrence]:
        """Make the occurrences that this process must run from the items of a claim.

        Args:
            claim: the store's answer.
            shard: the shard that was claimed from.
            now: time of the pass.
            plain_jobs: whether occurrences get plain `Job` objects, for our schedulers, see `scheduler_pass`.
        """
        claims = self._claims
        now = min(now, from_us(claim.now_us))  # a job is due when both clocks have reached its run time
        occurrences = []
        for item in claim.items:
            if item.topic == RUN:  # the mark of a run whose process was lost; the run is not repeated
                claims.settle(shard, claim.number, Done(item.id))
                continue
            if claims.continue_under(item.id, item.due_ms, claim.number, item.version):
                continue
            try:
                occurrence = self._occurrence(item, claim.number, shard, now, plain_jobs)
            except Exception as error:  # stored data may have any shape, and so may a module that is imported
                self._refuse(item, claim.number, shard, error)
                continue
            if occurrence is not None:
                claims.add(occurrence)
                occurrences.append(occurrence)
        return occurrences

    def _refuse(self, item: Claimed, claim_number: int, shard: int, error: Exception) -> None:
        reason = str(error) if isinstance(error, StoreError) else f"{type(error).__name__}: {error}"
        unreadable = isinstance(error, Unreadable) and not isinstance(error, NotHere)
        try:
            settlement = self._refusals.settlement(item, reason, error=error, unreadable=unreadable)
            self._claims.settle(shard, claim_number, settlement)
        except Exception:  # the other items of the batch must still run
            self._connection.logger.exception(
                "Job %r can neither be run nor given back; it is due again when its lease ends", job_id_of(item.id)
            )

    def _occurrence(
        self, item: Claimed, claim_number: int, shard: int, now: datetime, plain_jobs: bool
    ) -> Occurrence | None:
        job_id = job_id_of(item.id)
        run_times, body = None, item.body
        split_item = item.topic == OCCURRENCE
        if split_item:
            run_times, body = read_split_item(self._codec.unseal(item.id, item.body))
        stored = self._codec.decode(job_id, body, Job if plain_jobs else ClaimedJob)
        job = stored.job
        moment = job.next_run_time
        later = moment is None or (to_us(moment) > to_us(now) and (due_of(moment) or 0) > item.due_ms)
        if later and not split_item:
            # the job was paused or rescheduled while it ran, then its process was lost: the change wins over the run
            self._claims.settle(shard, claim_number, Next(item.id, due_of(moment)))
            return None
        refusal = refusal_of(item.refs)
        grace_s, claimed_at = chosen_grace(job, self._misfire), now
        if run_times is not None:
            zone = run_times[0].tzinfo if moment is None else moment.tzinfo
            run_times = [each.astimezone(zone) for each in run_times]
            job.next_run_time = run_times[0]
            job.trigger = _date_trigger(run_times[-1])
            job.misfire_grace_time = None  # the process that was lost had claimed it in time
        elif item.lapses:
            job.misfire_grace_time = None  # as above
        else:  # a wait for a process that can run the job, or for a free executor, is not lateness
            if refusal is not None:
                claimed_at = min(now, from_ms(refusal.since_ms))
            put_back_ms = item.due_ms - (due_of(moment) or 0)
            if refusal is None and put_back_ms > 0:
                claimed_at -= timedelta(milliseconds=put_back_ms)
            job.misfire_grace_time = grace_after_claim(job, claimed_at, self._misfire)
        redelivered = split_item or item.lapses > 0 or lost_ref(to_ms(job.next_run_time)) in item.refs
        occurrence: Occurrence
        if plain_jobs:
            occurrence = Occurrence(job, job_id, job.next_run_time, claim_number, redelivered)
            occurrence.run_at(run_times or [])
        else:
            until = lateness_until(claimed_at, self._misfire)
            occurrence = job.hand_out(claim_number, redelivered=redelivered, fixed=run_times, claimed_at=until)
        occurrence.reached = now
        refs = tuple(ref for ref in without_lost(without_refusal(item.refs)) if ref != RUNNING)
        in_time = grace_s is not None and job.misfire_grace_time is None
        occurrence.handle = ClaimHandle(shard, claim_number, item, body=body, refs=refs, stored=stored, in_time=in_time)
        return occurrence


def _date_trigger(moment: datetime) -> DateTrigger:
    trigger = DateTrigger.__new__(DateTrigger)
    trigger.run_date = moment
    return trigger

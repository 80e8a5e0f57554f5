"""Loading: makes occurrences of what a process has claimed.

Some claimed items are no occurrence for this process: a mark of a lost run, a run that is still under way here, a job
that was paused or moved while its lost holder ran it, a job that this process cannot run. Each of these is settled
here.

Threads: under the tracker's lock.
"""

from __future__ import annotations

from datetime import datetime

from apscheduler.job import Job
from apscheduler.triggers.date import DateTrigger

from wheel_sched.errors import StoreError
from wheel_sched.store import Claim, Claimed, Done, Next
from wheel_sched_apscheduler.codec import JobCodec, NotHere, Unreadable
from wheel_sched_apscheduler.occurrence import ClaimedJob, Occurrence
from wheel_sched_apscheduler.run_times import Misfire, from_ms, grace_after_claim, to_us
from wheel_sched_apscheduler.stores.claims import ClaimHandle, InFlightClaims
from wheel_sched_apscheduler.stores.connection import StoreConnection
from wheel_sched_apscheduler.stores.layout import OCCURRENCE, RUN, RUNNING, due_of, job_id_of, read_split_item
from wheel_sched_apscheduler.stores.refusals import RefusalPolicy, refusal_of, without_refusal


class ClaimLoader:
    """See the module.

    Args:
        codec: reads jobs.
        connection: gives the logger.
        claims: learns what was claimed.
        refusals: decides about jobs that cannot be run here.
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
        """The occurrences of a claim that this process is to run.

        Args:
            claim: the store's answer.
            shard: that gave it.
            now: of the pass.
            plain_jobs: whether the driver sets the current occurrence itself, see `contract`.
        """
        claims = self._claims
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
        except Exception:  # one item never costs the other items of its batch
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
            # the job was paused or moved while it ran, and then its process was lost: the change wins over the run
            self._claims.settle(shard, claim_number, Next(item.id, due_of(moment)))
            return None
        refusal = refusal_of(item.refs)
        if run_times is not None:
            zone = run_times[0].tzinfo if moment is None else moment.tzinfo
            run_times = [each.astimezone(zone) for each in run_times]
            job.next_run_time = run_times[0]
            job.trigger = _date_trigger(run_times[-1])
            job.misfire_grace_time = None  # its lost holder had claimed it in time
        elif item.lapses:
            job.misfire_grace_time = None  # the same
        else:  # waiting for a process that can run the job does not count as lateness
            claimed_at = now if refusal is None else min(now, from_ms(refusal.since_ms))
            job.misfire_grace_time = grace_after_claim(job, claimed_at, self._misfire)
        redelivered = split_item or item.lapses > 0
        occurrence: Occurrence
        if plain_jobs:
            occurrence = Occurrence(job, job_id, job.next_run_time, claim_number, redelivered)
            occurrence.run_at(run_times or [])
        else:
            occurrence = job.hand_out(claim_number, redelivered=redelivered, fixed=run_times)
        refs = tuple(ref for ref in without_refusal(item.refs) if ref != RUNNING)
        occurrence.handle = ClaimHandle(shard, claim_number, item, body=body, refs=refs, stored=stored)
        return occurrence


def _date_trigger(moment: datetime) -> DateTrigger:
    trigger = DateTrigger.__new__(DateTrigger)
    trigger.run_date = moment
    return trigger

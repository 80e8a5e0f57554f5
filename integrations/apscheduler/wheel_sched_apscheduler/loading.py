"""Loading: from what was claimed to fires, and what becomes of that which this process cannot run.

Others may be able to: in a fleet of several releases a process may lack the function, the executor, the secret. So a
job is given back, to come again a moment later, and longer each time; how often, since when, by whom and why stands in
its refs:

    refused, refused:<times>:<since, ms>:<host:pid> <reason>

Only what is refused again and again, for as long as a deployment takes, is quarantined; what no process of any
configuration can read is so at once. The next run, or a change of the job, takes the mark away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from apscheduler.job import Job
from apscheduler.triggers.date import DateTrigger

from wheel_sched.errors import StoreError
from wheel_sched.store import Claim, Claimed, Held, Next
from wheel_sched_apscheduler.claimed_job import ClaimedJob, dress
from wheel_sched_apscheduler.codec import NotHere, Unreadable
from wheel_sched_apscheduler.entries import owner_name
from wheel_sched_apscheduler.fire import Fire, bare_fire
from wheel_sched_apscheduler.flights import Ticket
from wheel_sched_apscheduler.instants import from_ms, to_us
from wheel_sched_apscheduler.layout import OCCURRENCE, RUNNING, due_of, job_id_of, read_occurrence
from wheel_sched_apscheduler.misfire import Misfire, grace_after_claim

if TYPE_CHECKING:
    from wheel_sched_apscheduler.redis_store import RedisWheelJobStore

REFUSED = "refused"
BACK_AFTER_MS = 100  # the first time; twice as long each further time
BACK_AT_MOST_MS = 30_000
_REASON_AT_MOST = 120  # characters of it in the mark


@dataclass(frozen=True, slots=True)
class Refusal:
    """How often what waits was given back.

    Args:
        times: so often.
        since_ms: the first time, by the store's clock.
        last: by whom and why, the last time.
    """

    times: int
    since_ms: int
    last: str

    def ref(self) -> str:
        return f"{REFUSED}:{self.times}:{self.since_ms}:{self.last}"


def refusal_of(refs: Sequence[str]) -> Refusal | None:
    """The mark among refs, None when it was not given back."""
    for ref in refs:
        if ref.startswith(f"{REFUSED}:"):
            try:
                _, times, since_ms, last = ref.split(":", 3)
                return Refusal(int(times), int(since_ms), last)
            except ValueError:
                continue
    return None


def unmarked(refs: Sequence[str]) -> tuple[str, ...]:
    """The refs without the mark."""
    if REFUSED not in refs:
        return tuple(refs)
    return tuple(ref for ref in refs if ref != REFUSED and not ref.startswith(f"{REFUSED}:"))


class Loading:
    """See the module; `home` is the jobstore it belongs to."""

    def __init__(self, home: RedisWheelJobStore, misfire: Misfire, refusals: int, after_ms: int) -> None:
        self._home = home
        self._misfire: Misfire = misfire
        self._refusals = refusals
        self._after_ms = after_ms

    def board(self, claim: Claim, shard: int, now: datetime) -> list[Fire]:
        """The fires of a claim, without what goes on here already, waits for later or cannot be run here."""
        flights = self._home._flights
        fires = []
        for item in claim.items:
            if flights.take_back(item.id, item.due_ms, claim.number, item.version):
                continue
            try:
                fire = self._fire(item, claim.number, shard, now)
            except Exception as error:  # stored data may be of any shape, and so may a module that is imported
                reason = str(error) if isinstance(error, StoreError) else f"{type(error).__name__}: {error}"
                nobody = isinstance(error, Unreadable) and not isinstance(error, NotHere)
                self._refuse(item, claim.number, shard, reason, error=error, nobody=nobody)
                continue
            if fire is not None:
                flights.board(fire)
                fires.append(fire)
        return fires

    def refuse_fire(self, fire: Fire, reason: str) -> None:
        """A fire that cannot be run here after all. Any thread."""
        ticket: Ticket = fire.ticket
        self._refuse(ticket.item, ticket.claim, ticket.shard, reason)
        self._home._flights.flying.pop(ticket.item_id, None)
        self._home._look()

    def _fire(self, item: Claimed, claim: int, shard: int, now: datetime) -> Fire | None:
        home = self._home
        job_id = job_id_of(item.id)
        run_times, body = None, item.body
        occurrence = item.topic == OCCURRENCE
        if occurrence:
            run_times, body = read_occurrence(home.codec.unseal(item.id, item.body))
        stored = home.codec.decode(job_id, body, Job if home.driven else ClaimedJob)
        job = stored.job
        moment = job.next_run_time
        later = moment is None or (to_us(moment) > to_us(now) and (due_of(moment) or 0) > item.due_ms)
        if later and not occurrence:
            # paused or moved while it ran, and its process was lost: the change holds, the run does not come again
            home._flights.settle(shard, claim, Next(item.id, due_of(moment)))
            return None
        job._scheduler, job._jobstore_alias = home._scheduler, home._alias
        refusal = refusal_of(item.refs)
        if run_times is not None:
            zone = run_times[0].tzinfo if moment is None else moment.tzinfo
            run_times = [each.astimezone(zone) for each in run_times]
            job.next_run_time = run_times[0]
            job.trigger = _once(run_times[-1])
            job.misfire_grace_time = None  # it was claimed in time by whoever was lost
        elif item.lapses:
            job.misfire_grace_time = None  # the same
        else:  # it is not the later for those who could not run it
            claimed_at = now if refusal is None else min(now, from_ms(refusal.since_ms))
            job.misfire_grace_time = grace_after_claim(job, claimed_at, self._misfire)
        redelivered = occurrence or item.lapses > 0
        fire: Fire
        if home.driven:
            fire = bare_fire(job, claim, redelivered=redelivered, fixed=run_times)
        else:
            fire = dress(job, claim, redelivered=redelivered, fixed=run_times).fire
        refs = tuple(ref for ref in unmarked(item.refs) if ref != RUNNING)
        fire.ticket = Ticket(shard, claim, item, body=body, refs=refs, stored=stored)
        return fire

    def _refuse(
        self, item: Claimed, claim: int, shard: int, reason: str, *, error: Any = None, nobody: bool = False
    ) -> None:
        """Give an item back for others, or quarantine it."""
        home = self._home
        job_id = job_id_of(item.id)
        now_ms = home.store_now_ms()
        before = refusal_of(item.refs)
        times, since_ms = (1, now_ms) if before is None else (before.times + 1, before.since_ms)
        if nobody or (times >= self._refusals and now_ms - since_ms >= self._after_ms):
            home._logger.error("Job %r cannot be run and is quarantined: %s", job_id, reason, exc_info=error)
            told = "" if nobody or times == 1 else f" (refused {times} times in {(now_ms - since_ms) // 1000} s)"
            home._flights.settle(shard, claim, Held(item.id, f"quarantine: {reason}{told}"))
            return
        delay_ms = min(BACK_AFTER_MS << min(times - 1, 20), BACK_AT_MOST_MS)
        home._logger.warning(
            "Job %r cannot be run here and is given back for others, for the %d. time: %s", job_id, times, reason
        )
        plain = "".join(letter if letter.isprintable() else " " for letter in reason)[:_REASON_AT_MOST]
        refusal = Refusal(times, since_ms, f"{owner_name()} {plain}"[:200])
        refs = (*unmarked(item.refs), REFUSED, refusal.ref())
        following = Next(item.id, now_ms + delay_ms, item.body, item.topic, refs, item.route, version=item.version)
        home._flights.settle(shard, claim, following)


def _once(moment: datetime) -> DateTrigger:
    trigger = DateTrigger.__new__(DateTrigger)
    trigger.run_date = moment
    return trigger

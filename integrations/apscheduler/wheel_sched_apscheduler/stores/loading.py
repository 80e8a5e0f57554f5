"""Loading: from what was claimed to fires, and what becomes of that which this process cannot run.

Others may be able to: in a fleet of several releases a process may lack the function, the executor, the secret. So a
job is given back, to come again a moment later; and who has given one back comes later than the others for a while, to
whatever is due (`aside_ms`), so that it does not take the job from those who can run it. When a process gets it that
has refused it already, that was a round: the others had their chance. Each further round comes after twice as long. How
many there were, since when, who refused it in this one, and the last reason stand in the job's refs:

    refused, refused:<rounds>:<since, ms>:<marks of processes>:<host:pid> <reason>

Only what was refused in round after round, for as long as a deployment takes, is quarantined; what no process of any
configuration can read is so at once. The next run, or a change of the job, takes the mark away.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from apscheduler.job import Job
from apscheduler.triggers.date import DateTrigger

from wheel_sched.errors import StoreError
from wheel_sched.escaping import escaped
from wheel_sched.store import Claim, Claimed, Done, Held, Next
from wheel_sched_apscheduler.codec import NotHere, Unreadable
from wheel_sched_apscheduler.instants import from_ms, to_us
from wheel_sched_apscheduler.misfire import Misfire, grace_after_claim
from wheel_sched_apscheduler.occurrence import Fire, bare_fire
from wheel_sched_apscheduler.stores.claimed_job import ClaimedJob, dress
from wheel_sched_apscheduler.stores.claims import Ticket
from wheel_sched_apscheduler.stores.entries import owner_name
from wheel_sched_apscheduler.stores.layout import OCCURRENCE, RUN, RUNNING, due_of, job_id_of, read_occurrence

if TYPE_CHECKING:
    from wheel_sched_apscheduler.stores.redis import RedisWheelJobStore

REFUSED = "refused"
BACK_AFTER_MS = 100  # to a process that has not refused it; after a round twice as long as before
BACK_AT_MOST_MS = 30_000
ASIDE_MS = 200  # so much later than the others comes who has refused something
ASIDE_FOR_S = 60.0  # since the last time
ASIDE_ROUNDS = 3  # later than these only to that job: nobody seems to be there who can run it, and others wait as well
_BACK_AT_MOST = 100
_REFUSERS_AT_MOST = 10  # in a mark; as many are a round as well, for some of them may be gone
_REASON_AT_MOST = 90  # characters of it in the mark
_LAST_AT_MOST = 120  # of it with the process that gave it
_TOLD_AT_MOST = 1000  # of the reason in the log and the quarantine
_TIMES_AT_MOST = 1_000_000
_SINCE_AT_MOST_MS = 1 << 47  # the year 6429


@dataclass(frozen=True, slots=True)
class Refusal:
    """How often what waits was given back.

    Args:
        times: in so many rounds; the first begins it.
        since_ms: the first time, by the store's clock.
        refusers: marks of the processes that gave it back in this round.
        last: by whom and why, the last time.
    """

    times: int
    since_ms: int
    refusers: tuple[str, ...]
    last: str

    def ref(self) -> str:
        return f"{REFUSED}:{self.times}:{self.since_ms}:{','.join(self.refusers)}:{self.last}"

    def again(self, refuser: str, last: str) -> Refusal:
        """The mark after one more refusal: a new round, if this process was in the present one."""
        if refuser in self.refusers or len(self.refusers) >= _REFUSERS_AT_MOST:
            return Refusal(self.times + 1, self.since_ms, (refuser,), last)
        return Refusal(self.times, self.since_ms, (*self.refusers, refuser), last)


def refusal_of(refs: Sequence[str]) -> Refusal | None:
    """The mark among refs, None when it was not given back. Anybody can write one: its numbers are kept in bounds."""
    for ref in refs:
        if ref.startswith(f"{REFUSED}:"):
            try:
                _, rounds, since, refusers, last = ref.split(":", 4)
                times, since_ms = min(max(int(rounds), 1), _TIMES_AT_MOST), min(max(int(since), 0), _SINCE_AT_MOST_MS)
                return Refusal(times, since_ms, tuple(refusers.split(",")), last)
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
        self._mark = uuid4().hex[:6]  # of this process among the refusers of a job
        self._aside_until_s = 0.0
        self._back: deque[int] = deque(maxlen=_BACK_AT_MOST)  # dues of what was given back

    def aside_ms(self, heads: Iterable[int | None]) -> int:
        """How much later than the others to come to what is due next: it may be what this process cannot run."""
        aside = time.monotonic() < self._aside_until_s or any(head in self._back for head in heads)
        return ASIDE_MS if aside else 0

    def board(self, claim: Claim, shard: int, now: datetime) -> list[Fire]:
        """The fires of a claim, without what goes on here already, waits for later or cannot be run here."""
        flights = self._home._flights
        fires = []
        for item in claim.items:
            if item.topic == RUN:  # the mark of one whose process was lost: it is not run again
                flights.settle(shard, claim.number, Done(item.id))
                continue
            if flights.take_back(item.id, item.due_ms, claim.number, item.version):
                continue
            try:
                fire = self._fire(item, claim.number, shard, now)
            except Exception as error:  # stored data may be of any shape, and so may a module that is imported
                reason = str(error) if isinstance(error, StoreError) else f"{type(error).__name__}: {error}"
                nobody = isinstance(error, Unreadable) and not isinstance(error, NotHere)
                try:
                    self._refuse(item, claim.number, shard, reason, error=error, nobody=nobody)
                except Exception:  # one item never costs the others of its batch
                    self._home._logger.exception(
                        "Job %r can neither be run nor given back; it comes again when its lease ends",
                        job_id_of(item.id),
                    )
                continue
            if fire is not None:
                flights.board(fire)
                fires.append(fire)
        return fires

    def refuse_fire(self, fire: Fire, reason: str, *, error: Any = None, nobody: bool = False) -> None:
        """A fire that cannot be run here after all; or by nobody. Any thread."""
        ticket: Ticket = fire.ticket
        self._refuse(ticket.item, ticket.claim, ticket.shard, reason, error=error, nobody=nobody)
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
        reason = escaped(reason[:_TOLD_AT_MOST])  # it quotes what lies in the store
        job_id = job_id_of(item.id)
        now_ms = home.store_now_ms()
        before = refusal_of(item.refs)
        plain = "".join(letter if letter.isprintable() else " " for letter in reason)[:_REASON_AT_MOST]
        last = f"{owner_name()} {plain}"[:_LAST_AT_MOST]
        refusal = Refusal(1, now_ms, (self._mark,), last) if before is None else before.again(self._mark, last)
        times, waited_ms = refusal.times, now_ms - refusal.since_ms
        new_round = before is None or times > before.times
        if nobody or (new_round and times >= self._refusals and waited_ms >= self._after_ms):
            home._logger.error("Job %r cannot be run and is quarantined: %s", job_id, reason, exc_info=error)
            told = "" if nobody or times == 1 else f" (refused {times} times in {waited_ms // 1000} s)"
            home._flights.settle(shard, claim, Held(item.id, f"quarantine: {reason}{told}"))
            return
        if times <= ASIDE_ROUNDS:
            self._aside_until_s = time.monotonic() + ASIDE_FOR_S
        delay_ms = min(BACK_AFTER_MS << min(times - 1, 20), BACK_AT_MOST_MS) if new_round else BACK_AFTER_MS
        home._logger.warning(
            "Job %r cannot be run here and is given back for others, for the %d. time: %s", job_id, times, reason
        )
        refs = (*unmarked(item.refs), REFUSED, refusal.ref())
        self._back.append(now_ms + delay_ms)
        following = Next(item.id, now_ms + delay_ms, item.body, item.topic, refs, item.route, version=item.version)
        home._flights.settle(shard, claim, following)


def _once(moment: datetime) -> DateTrigger:
    trigger = DateTrigger.__new__(DateTrigger)
    trigger.run_date = moment
    return trigger

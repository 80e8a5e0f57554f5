"""Flights: what this process has claimed, from the claim until the store has been told how it ended.

A claimed job stays in the store under a lease. What becomes of it is gathered here and told in few round trips,
together with the next claim where there is one:

    ended, last run           settle Done
    ended, runs again         settle Next: the job waits for its next run time
    still running, runs again *split*: an occurrence `<run time>\\0<job id>` is stored, due when its lease would end,
                              and the job settles Next; when the run ends the occurrence is cancelled
    put back                  settle Next at its old due, or later
    cannot be run here        settle Next after a while, or Held: see `loading`

Others may change a job meanwhile. One whose record was replaced is refused by the store (OTHER_VERSION): it is read
again, and what follows is made of the new record, at the planned run time unless that was changed. One whose id was
taken by a new job goes on as the occurrence `<due>\\0<job id>` under the same claim (STALE): it is settled there.

So an occurrence is in the store until it has ended: in the job itself while it is short, as an item of its own when it
takes longer than `SPLIT_AFTER_S` or the next run is due. A process that dies lets the lease end, and the job or the
occurrence is due again for whoever claims next.

Invariant. A fire is in `flying` from its claim until the store has answered its last settlement. A call whose answer
was lost is repeated as it was, under its token. Threads: `gather` and `answered` under the owner's lock; `end` and
`put_back` from anywhere.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from apscheduler.triggers.date import DateTrigger

from wheel_sched.store import MAX_BATCH, Claimed, Done, Found, Item, Next, Outcome, Settlement
from wheel_sched.store.operations import Alteration, Call, Change, Extend, Get, Schedule, Settle, new_token
from wheel_sched.store.plans import shard_of
from wheel_sched_apscheduler.codec import JobCodec, Stored
from wheel_sched_apscheduler.instants import to_ms, to_us
from wheel_sched_apscheduler.occurrence import Fire
from wheel_sched_apscheduler.stores.layout import JOB, OCCURRENCE, RUNNING, due_of, occurrence_body, occurrence_id

SPLIT_AFTER_S = 0.05  # a job whose run is longer frees itself for its next run, and for whoever wants to change it
ORPHANS_AT_MOST = 10_000  # ended fires whose settlement came too late, in case they come back


class Ticket:
    """Where a fire lies in the store."""

    __slots__ = (
        "body",
        "claim",
        "due_ms",
        "gone",
        "item",
        "item_id",
        "occurrence",
        "refs",
        "running",
        "shard",
        "since",
        "split",
        "stale",
        "stored",
        "version",
    )

    def __init__(
        self,
        shard: int,
        claim: int,
        item: Claimed,
        *,
        body: bytes,
        refs: tuple[str, ...],
        stored: Stored,
    ) -> None:
        self.shard = shard
        self.claim = claim
        self.item = item  # as it was claimed
        self.item_id = item.id  # of what is claimed; after a split, of the occurrence
        self.due_ms = item.due_ms
        self.body = body  # the job's
        self.refs = refs
        self.stored = stored
        self.version = item.version  # of the record that what follows is made of
        self.occurrence = item.topic == OCCURRENCE  # the claimed item is one that was split off before
        self.split = False  # nothing is claimed any more; the occurrence waits for its lease's end
        self.running = False  # others of the job's runs are under way
        self.stale = False  # its claim was not found under its id
        self.gone = False  # nothing of it is in the store: it is handed out at most once
        self.since = time.monotonic()


class Told(NamedTuple):
    """What the store is told of what was claimed: of a fire, of the job of one that was split, of what is none."""

    shard: int
    claim: int
    settlement: Settlement
    fire: Fire | None = None
    split: bool = False


class Parcel:
    """One call, what it is about (fires, what was told of them), and what to do with the answer."""

    __slots__ = ("about", "answered", "call")

    def __init__(self, call: Call[Any], about: Sequence[Any], answered: Callable[[Any, Sequence[Any]], None]) -> None:
        self.call = call
        self.about = about
        self.answered = answered


Settlements = dict[tuple[int, int], list[Told]]


class Flights:
    """See the module.

    Args:
        codec: writes the next occurrence of a job.
        shards: of the namespace.
        lease_ms: how long a claim holds without being extended.
        lost: called with a fire that never reached its executor, or was lost by it, and is to be handed out again.
    """

    def __init__(
        self,
        codec: JobCodec,
        shards: int,
        lease_ms: int,
        lost: Callable[[Fire], Any],
    ) -> None:
        self._codec = codec
        self._shards = shards
        self._lease_ms = lease_ms
        self._lost = lost
        self.flying: dict[str, Fire] = {}
        self._ended: deque[Fire] = deque()
        self._returned: deque[tuple[Fire, int | None]] = deque()
        self._young: deque[Fire] = deque()  # handed over and run again: candidates for a split, oldest first
        self._unsent: list[Parcel] = []
        self._replaced: deque[Told] = deque()  # to be read again
        self._again: deque[Told] = deque()  # to be told as it is
        self._orphans: OrderedDict[tuple[str, int, int], Fire] = OrderedDict()

    def __len__(self) -> int:
        return len(self.flying)

    @property
    def waiting(self) -> bool:
        """Whether there is something to tell the store at once."""
        return bool(self._ended or self._returned or self._unsent or self._replaced or self._again)

    def next_split_s(self, now_s: float) -> float | None:
        """In how many seconds a running job is to be split; None = none is."""
        return max(0.0, self._young[0].ticket.since + SPLIT_AFTER_S - now_s) if self._young else None

    # What happens to fires.

    def board(self, fire: Fire) -> None:
        """A fire was claimed."""
        self.flying[fire.ticket.item_id] = fire

    def take_back(self, item_id: str, due_ms: int, claim: int, version: int) -> bool:
        """Whether what was claimed is a fire of this process whose lease had ended: it goes on under the new claim."""
        fire = self.flying.get(item_id)
        if fire is not None and fire.ticket.claim != claim:
            ticket = fire.ticket
            if not ticket.occurrence and not ticket.split and ticket.version != version:
                self._set_aside(fire)  # another job of the same id
            elif not fire.alive and fire.finish is None:
                del self.flying[item_id]
                self._lost(fire)
                return False
            elif ticket.split or ticket.due_ms == due_ms:
                ticket.claim, ticket.due_ms, ticket.stale = claim, due_ms, False
                ticket.occurrence, ticket.split = ticket.occurrence or ticket.split, False
                return True
        orphan = self._orphans.pop((item_id, due_ms, version), None)
        if orphan is None:
            return False
        ticket = orphan.ticket
        ticket.claim, ticket.item_id, ticket.occurrence = claim, item_id, item_id != orphan.job_id
        self.board(orphan)
        self._ended.append(orphan)
        return True

    def _set_aside(self, fire: Fire) -> None:
        """Its id may have been taken by another job: if so, its claim has gone on under this one."""
        ticket: Ticket = fire.ticket
        if self.flying.get(ticket.item_id) is fire:
            del self.flying[ticket.item_id]
        ticket.item_id, ticket.occurrence = occurrence_id(fire.job_id, ticket.due_ms), True
        self.flying[ticket.item_id] = fire

    def handed_over(self, fires: Iterable[Fire]) -> None:
        """These run, and are planned."""
        for fire in fires:
            if fire.next_run_time is not None and not fire.ticket.occurrence and not fire.ticket.split:
                self._young.append(fire)

    def end(self, fire: Fire) -> None:
        """A fire has ended; any thread."""
        self._ended.append(fire)

    def put_back(self, fire: Fire, due_ms: int | None) -> None:
        """A fire is not to run now; None = at its old due. Any thread."""
        self._returned.append((fire, due_ms))

    def settle(self, shard: int, claim: int, settlement: Settlement) -> None:
        """What was claimed and is no fire. Any thread."""
        self._again.append(Told(shard, claim, settlement))

    # What the store is to be told.

    def gather(self, server_now_ms: int, *, split_due_ms: int | None = None) -> list[Parcel]:
        """The calls that tell the store what has happened since the last time.

        Args:
            server_now_ms: the store's time, as far as it is known.
            split_due_ms: split also what runs again up to then. Defaults to None: only what has run for a while.
        """
        parcels, self._unsent = self._unsent, []
        settlements: Settlements = {}
        changes: dict[int, list[tuple[Fire, Alteration]]] = {}
        while self._again:
            self._tell(settlements, self._again.popleft())
        while self._replaced:
            told = self._replaced.popleft()
            parcels.append(Parcel(Call(told.shard, Get([told.settlement.id])), [told], self._read))
        self._gather_ended(settlements, changes)
        parcels += self._scheduled(self._gather_returned(settlements, changes))
        parcels += self._gather_splits(settlements, server_now_ms, split_due_ms)
        for (shard, claim), settled in settlements.items():
            for at in range(0, len(settled), MAX_BATCH):
                chosen = settled[at : at + MAX_BATCH]
                call: Call[Any] = Call(shard, Settle(claim, [told.settlement for told in chosen]))
                parcels.append(Parcel(call, chosen, self._settled))
        for shard, changed in changes.items():
            for at in range(0, len(changed), MAX_BATCH):
                part = changed[at : at + MAX_BATCH]
                call = Call(shard, Change([alteration for _, alteration in part], new_token()))
                parcels.append(Parcel(call, [fire for fire, _ in part], self._changed))
        return parcels

    @staticmethod
    def _tell(settlements: Settlements, told: Told) -> None:
        settlements.setdefault((told.shard, told.claim), []).append(told)

    def keep(self, parcels: Iterable[Parcel]) -> None:
        """Their answers were lost: repeat them as they are."""
        self._unsent.extend(parcels)

    def _gather_ended(
        self,
        settlements: Settlements,
        changes: dict[int, list[tuple[Fire, Alteration]]],
    ) -> None:
        early = []
        while self._ended:
            fire = self._ended.popleft()
            ticket: Ticket = fire.ticket
            if not fire.planned:
                early.append(fire)  # it ended before the pass came to plan it
            elif ticket.split:
                changes.setdefault(ticket.shard, []).append((fire, Alteration(ticket.item_id, "c")))
            else:
                self._tell(settlements, Told(ticket.shard, ticket.claim, self._after(fire), fire))
        self._ended.extend(early)

    def _after(self, fire: Fire) -> Settlement:
        """What follows an unsplit fire that has ended."""
        ticket: Ticket = fire.ticket
        if ticket.occurrence:
            return Done(ticket.item_id)
        if fire.next_run_time is not None:
            return self._successor(fire)
        # of one that runs once everybody knows that this is its end: no need to look whether it was changed
        once = type(ticket.stored.trigger) is DateTrigger
        return Done(ticket.item_id, None if once else ticket.version)

    def _successor(self, fire: Fire, *, running: bool = False) -> Next:
        ticket: Ticket = fire.ticket
        moment = fire.next_run_time
        body = self._codec.advanced(ticket.stored, moment)
        refs = (*ticket.refs, RUNNING) if running or ticket.running else ticket.refs
        return Next(ticket.item_id, due_of(moment), body, JOB, refs, version=ticket.version)

    def _merged(self, fire: Fire, found: Found, running: bool) -> Settlement:
        """What follows a job whose record was replaced: at its own run time if that was changed, else as planned."""
        ticket: Ticket = fire.ticket
        moment = self._codec.next_run_time(found.body)
        body = found.body
        if moment is not None and to_us(moment) == to_us(fire.scheduled):
            moment = fire.next_run_time
            if moment is None:
                return Done(found.id, found.version)
            body = self._codec.moved(found.id, found.body, moment)
        ticket.version = found.version
        refs = tuple(ref for ref in found.refs if ref != RUNNING)
        if running or ticket.running:
            refs += (RUNNING,)
        return Next(found.id, due_of(moment), body, JOB, refs, version=found.version)

    def _gather_returned(
        self,
        settlements: Settlements,
        changes: dict[int, list[tuple[Fire, Alteration]]],
    ) -> dict[int, list[Item]]:
        """The answer: what has left the store already, and is to be put into it again."""
        again: dict[int, list[Item]] = {}
        while self._returned:
            fire, due_ms = self._returned.popleft()
            ticket: Ticket = fire.ticket
            due = ticket.due_ms if due_ms is None else due_ms
            if ticket.gone:
                again.setdefault(ticket.shard, []).append(self._occurrence(fire, due))
            elif ticket.split:
                changes.setdefault(ticket.shard, []).append((fire, Alteration(ticket.item_id, "r", due)))
            else:
                self._tell(settlements, Told(ticket.shard, ticket.claim, Next(ticket.item_id, due), fire))
        return again

    def _scheduled(self, items: dict[int, list[Item]]) -> list[Parcel]:
        """Calls that store new items, by shard."""
        parcels = []
        for shard, each in items.items():
            for at in range(0, len(each), MAX_BATCH):
                call: Call[Any] = Call(shard, Schedule(each[at : at + MAX_BATCH], new_token()))
                parcels.append(Parcel(call, [], self._ignored))
        return parcels

    def _gather_splits(
        self,
        settlements: Settlements,
        server_now_ms: int,
        split_due_ms: int | None,
    ) -> list[Parcel]:
        young, self._young = self._young, deque()
        oldest = time.monotonic() - SPLIT_AFTER_S
        chosen: dict[int, list[tuple[Fire, Item]]] = {}
        for fire in young:
            ticket: Ticket = fire.ticket
            if fire.finish is not None or ticket.split or ticket.occurrence or fire.next_run_time is None:
                continue
            if self.flying.get(ticket.item_id) is not fire:
                continue
            next_due = due_of(fire.next_run_time)
            due = split_due_ms is not None and next_due is not None and next_due <= split_due_ms
            if ticket.since > oldest and not due:
                self._young.append(fire)
                continue
            item = self._occurrence(fire, server_now_ms + self._lease_ms)
            chosen.setdefault(ticket.shard, []).append((fire, item))
        parcels = self._scheduled({shard: [item for _, item in pairs] for shard, pairs in chosen.items()})
        for shard, pairs in chosen.items():
            for fire, item in pairs:
                ticket = fire.ticket
                self._tell(
                    settlements, Told(shard, ticket.claim, self._successor(fire, running=True), fire, split=True)
                )
                self.flying.pop(ticket.item_id, None)
                ticket.item_id, ticket.split = item.id, True
                self.flying[item.id] = fire
        return parcels

    def _occurrence(self, fire: Fire, due_ms: int) -> Item:
        ticket: Ticket = fire.ticket
        run_times = fire.run_times or [fire.scheduled]
        # of the job's own shard, so that its fencing tokens go on growing
        route = fire.job_id if self._shards > 1 else None
        item_id = occurrence_id(fire.job_id, to_ms(run_times[0]))
        body = self._codec.seal(item_id, occurrence_body(run_times, ticket.body))
        return Item(item_id, due_ms, body, OCCURRENCE, (f"run:{fire.job_id}",), route)

    def heartbeats(self, server_now_ms: int, alive: Callable[[Fire], bool]) -> list[Parcel]:
        """Calls that extend the leases of what is still running here."""
        held: dict[tuple[int, int], list[tuple[Fire, str]]] = {}
        split: dict[int, list[Alteration]] = {}
        for fire in list(self.flying.values()):
            ticket: Ticket = fire.ticket
            if not alive(fire):
                continue
            if ticket.split:
                beat = Alteration(ticket.item_id, "r", server_now_ms + self._lease_ms)
                split.setdefault(ticket.shard, []).append(beat)
            else:
                place = held.setdefault((ticket.shard, ticket.claim), [])
                place.append((fire, ticket.item_id))
                if ticket.stale and not ticket.occurrence:
                    place.append((fire, occurrence_id(fire.job_id, ticket.due_ms)))
        parcels = []
        for (shard, claim), pairs in held.items():
            for at in range(0, len(pairs), MAX_BATCH):
                part = pairs[at : at + MAX_BATCH]
                call: Call[Any] = Call(shard, Extend(claim, [item_id for _, item_id in part], self._lease_ms))
                parcels.append(Parcel(call, part, self._extended))
        for shard, beats in split.items():
            for at in range(0, len(beats), MAX_BATCH):
                call = Call(shard, Change(beats[at : at + MAX_BATCH], ""))
                parcels.append(Parcel(call, [], self._ignored))
        return parcels

    # Answers.

    def _settled(self, answer: Any, about: Sequence[Told]) -> None:
        for told, outcome in zip(about, answer.outcomes, strict=True):
            fire = told.fire
            if fire is None:
                if outcome is Outcome.OTHER_VERSION:  # perhaps it is no longer what could not be run
                    self.settle(told.shard, told.claim, Next(told.settlement.id, 0))
                continue
            ticket: Ticket = fire.ticket
            if outcome is Outcome.OTHER_VERSION:
                self._replaced.append(told)
            elif told.split:
                if outcome is Outcome.STALE and told.settlement.id == fire.job_id:
                    # if its id was taken, the run lies twice beside it: as it was set aside, and as it was split
                    aside = occurrence_id(fire.job_id, ticket.due_ms)
                    self._again.append(told._replace(settlement=Done(aside)))
            elif outcome is Outcome.STALE and not ticket.occurrence:
                self._set_aside(fire)
                before = told.settlement
                settlement: Settlement = Done(ticket.item_id)
                if isinstance(before, Next) and before.body is None:  # it was put back
                    settlement = Next(ticket.item_id, before.due_ms)
                self._again.append(told._replace(settlement=settlement))
            else:
                self._landed(fire, outcome)

    def _landed(self, fire: Fire, outcome: Outcome) -> None:
        ticket: Ticket = fire.ticket
        if self.flying.get(ticket.item_id) is fire:
            del self.flying[ticket.item_id]
        if outcome is Outcome.STALE and fire.finish is not None:
            # its lease had ended: should it come back to this process, it has run already
            for item_id in {ticket.item_id, ticket.item.id}:
                self._orphans[item_id, ticket.due_ms, ticket.version] = fire
            while len(self._orphans) > ORPHANS_AT_MOST:
                self._orphans.popitem(last=False)

    def _read(self, answer: Any, about: Sequence[Told]) -> None:
        """A job that was changed while it was in flight, as it is now."""
        for told, found in zip(about, answer, strict=True):
            settlement = told.settlement  # of what is no longer ours: the store will say so
            if told.fire is not None and found is not None and found.state == "fly":
                settlement = self._merged(told.fire, found, told.split)
            self._again.append(told._replace(settlement=settlement))

    def _extended(self, answer: Any, about: Sequence[tuple[Fire, str]]) -> None:
        for (fire, item_id), outcome in zip(about, answer.outcomes, strict=True):
            if item_id == fire.ticket.item_id:
                fire.ticket.stale = outcome is Outcome.STALE
            elif outcome is not Outcome.STALE and not fire.ticket.split:
                self._set_aside(fire)

    def _changed(self, _: Any, fires: Sequence[Fire]) -> None:
        for fire in fires:
            if self.flying.get(fire.ticket.item_id) is fire:
                del self.flying[fire.ticket.item_id]

    @staticmethod
    def _ignored(_: Any, __: Sequence[Fire]) -> None:
        pass


def shard_for(job_id: str, shards: int) -> int:
    """The shard a job lies in."""
    return shard_of(job_id, shards)

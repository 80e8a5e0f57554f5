"""Flights: what this process has claimed, from the claim until the store has been told how it ended.

A claimed job stays in the store under a lease. What becomes of it is gathered here and told in few round trips,
together with the next claim where there is one:

    ended, last run           settle Done
    ended, runs again         settle Next: the job waits for its next run time
    still running, runs again *split*: an occurrence `<run time>\\0<job id>` is stored, due when its lease would end,
                              and the job settles Next; when the run ends the occurrence is cancelled
    put back                  settle Next at its old due, or later
    cannot be loaded          settle Held: quarantined

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
from datetime import datetime
from typing import Any

from wheel_sched.store import MAX_BATCH, Done, Held, Item, Next, Outcome, Settlement
from wheel_sched.store.operations import Alteration, Call, Change, Extend, Schedule, Settle, new_token
from wheel_sched.store.plans import shard_of
from wheel_sched_apscheduler.codec import JobCodec, Stored
from wheel_sched_apscheduler.fire import Fire
from wheel_sched_apscheduler.instants import to_ms
from wheel_sched_apscheduler.layout import JOB, OCCURRENCE, due_of, occurrence_body, occurrence_id

SPLIT_AFTER_S = 0.05  # a job whose run is longer frees itself for its next run, and for whoever wants to change it
ORPHANS_AT_MOST = 10_000  # ended fires whose settlement came too late, in case they come back


class Ticket:
    """Where a fire lies in the store."""

    __slots__ = (
        "body",
        "claim",
        "due_ms",
        "gone",
        "item_id",
        "occurrence",
        "refs",
        "shard",
        "since",
        "split",
        "stored",
    )

    def __init__(
        self,
        shard: int,
        claim: int,
        item_id: str,
        due_ms: int,
        *,
        body: bytes,
        refs: tuple[str, ...],
        stored: Stored,
        occurrence: bool,
    ) -> None:
        self.shard = shard
        self.claim = claim
        self.item_id = item_id  # of what is claimed; after a split, of the occurrence
        self.due_ms = due_ms
        self.body = body
        self.refs = refs
        self.stored = stored
        self.occurrence = occurrence  # the claimed item is one that was split off before
        self.split = False  # nothing is claimed any more; the occurrence waits for its lease's end
        self.gone = False  # nothing of it is in the store: it is handed out at most once
        self.since = time.monotonic()


class Parcel:
    """One call, the fires it settles, and what to do with the answer."""

    __slots__ = ("answered", "call", "fires")

    def __init__(self, call: Call[Any], fires: Sequence[Fire], answered: Callable[[Any, Sequence[Fire]], None]) -> None:
        self.call = call
        self.fires = fires
        self.answered = answered


class Flights:
    """See the module.

    Args:
        codec: writes the next occurrence of a job.
        shards: of the namespace.
        lease_ms: how long a claim holds without being extended.
        may_split: whether a running job may be freed for its next run, given the fire.
        lost: called with a fire that never reached its executor, or was lost by it, and is to be handed out again.
    """

    def __init__(
        self,
        codec: JobCodec,
        shards: int,
        lease_ms: int,
        may_split: Callable[[Fire], bool],
        lost: Callable[[Fire], Any],
    ) -> None:
        self._codec = codec
        self._shards = shards
        self._lease_ms = lease_ms
        self._may_split = may_split
        self._lost = lost
        self.flying: dict[str, Fire] = {}
        self._ended: deque[Fire] = deque()
        self._returned: deque[tuple[Fire, int | None]] = deque()
        self._quarantined: deque[tuple[int, int, str, str]] = deque()
        self._young: deque[Fire] = deque()  # handed over and run again: candidates for a split, oldest first
        self._unsent: list[Parcel] = []
        self._orphans: OrderedDict[tuple[str, int], Fire] = OrderedDict()

    def __len__(self) -> int:
        return len(self.flying)

    @property
    def waiting(self) -> bool:
        """Whether there is something to tell the store at once."""
        return bool(self._ended or self._returned or self._quarantined or self._unsent)

    def next_split_s(self, now_s: float) -> float | None:
        """In how many seconds a running job is to be split; None = none is."""
        return max(0.0, self._young[0].ticket.since + SPLIT_AFTER_S - now_s) if self._young else None

    # What happens to fires.

    def board(self, fire: Fire) -> None:
        """A fire was claimed."""
        self.flying[fire.ticket.item_id] = fire

    def take_back(self, item_id: str, due_ms: int, claim: int) -> bool:
        """Whether what was claimed is a fire of this process whose lease had ended: it goes on under the new claim."""
        fire = self.flying.get(item_id)
        if fire is not None and fire.ticket.claim != claim:
            ticket = fire.ticket
            if not fire.alive and fire.finish is None:
                del self.flying[item_id]
                self._lost(fire)
                return False
            if ticket.split or ticket.due_ms == due_ms:
                ticket.claim, ticket.due_ms = claim, due_ms
                ticket.occurrence, ticket.split = ticket.occurrence or ticket.split, False
                return True
        orphan = self._orphans.pop((item_id, due_ms), None)
        if orphan is None:
            return False
        orphan.ticket.claim = claim
        self.board(orphan)
        self._ended.append(orphan)
        return True

    def handed_over(self, fires: Iterable[Fire]) -> None:
        """These run, and are planned."""
        for fire in fires:
            runs_again = fire.next_run_time is not None or fire.overriding is not None
            if runs_again and not fire.ticket.occurrence and not fire.ticket.split:
                self._young.append(fire)

    def end(self, fire: Fire) -> None:
        """A fire has ended; any thread."""
        self._ended.append(fire)

    def put_back(self, fire: Fire, due_ms: int | None) -> None:
        """A fire is not to run now; None = at its old due. Any thread."""
        self._returned.append((fire, due_ms))

    def quarantine(self, shard: int, claim: int, item_id: str, reason: str) -> None:
        """A claimed item cannot be run here."""
        self._quarantined.append((shard, claim, item_id, f"quarantine: {reason}"))

    # What the store is to be told.

    def gather(self, server_now_ms: int, *, split_due_ms: int | None = None) -> list[Parcel]:
        """The calls that tell the store what has happened since the last time.

        Args:
            server_now_ms: the store's time, as far as it is known.
            split_due_ms: split also what runs again up to then. Defaults to None: only what has run for a while.
        """
        parcels, self._unsent = self._unsent, []
        settlements: dict[tuple[int, int], list[tuple[Fire | None, Settlement]]] = {}
        changes: dict[int, list[tuple[Fire, Alteration]]] = {}
        self._gather_ended(settlements, changes)
        parcels += self._scheduled(self._gather_returned(settlements, changes))
        while self._quarantined:
            shard, claim, item_id, reason = self._quarantined.popleft()
            settlements.setdefault((shard, claim), []).append((None, Held(item_id, reason)))
        parcels += self._gather_splits(settlements, server_now_ms, split_due_ms)
        for (shard, claim), settled in settlements.items():
            for at in range(0, len(settled), MAX_BATCH):
                chosen = settled[at : at + MAX_BATCH]
                fires = [fire for fire, _ in chosen]
                call: Call[Any] = Call(shard, Settle(claim, [what for _, what in chosen]))
                parcels.append(Parcel(call, fires, self._settled))  # type: ignore[arg-type]  # None = quarantined
        for shard, changed in changes.items():
            for at in range(0, len(changed), MAX_BATCH):
                part = changed[at : at + MAX_BATCH]
                call = Call(shard, Change([alteration for _, alteration in part], new_token()))
                parcels.append(Parcel(call, [fire for fire, _ in part], self._changed))
        return parcels

    def keep(self, parcels: Iterable[Parcel]) -> None:
        """Their answers were lost: repeat them as they are."""
        self._unsent.extend(parcels)

    def _gather_ended(
        self,
        settlements: dict[tuple[int, int], list[tuple[Fire | None, Settlement]]],
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
                settlements.setdefault((ticket.shard, ticket.claim), []).append((fire, self._after(fire)))
        self._ended.extend(early)

    def _after(self, fire: Fire) -> Settlement:
        """What follows an unsplit fire that has ended."""
        ticket: Ticket = fire.ticket
        if ticket.occurrence or (fire.next_run_time is None and fire.overriding is None):
            return Done(ticket.item_id)
        return self._successor(fire)

    def _successor(self, fire: Fire) -> Next:
        ticket: Ticket = fire.ticket
        if fire.overriding is not None:
            body = self._codec.encode(fire.overriding, ticket.stored.metadata)
            moment = fire.overriding.next_run_time
        else:
            moment = fire.next_run_time
            body = self._codec.advanced(ticket.stored, moment)
        return Next(ticket.item_id, due_of(moment), body, JOB, ticket.refs)

    def _gather_returned(
        self,
        settlements: dict[tuple[int, int], list[tuple[Fire | None, Settlement]]],
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
                settlements.setdefault((ticket.shard, ticket.claim), []).append((fire, Next(ticket.item_id, due)))
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
        settlements: dict[tuple[int, int], list[tuple[Fire | None, Settlement]]],
        server_now_ms: int,
        split_due_ms: int | None,
    ) -> list[Parcel]:
        young, self._young = self._young, deque()
        oldest = time.monotonic() - SPLIT_AFTER_S
        chosen: dict[int, list[tuple[Fire, Item]]] = {}
        for fire in young:
            ticket: Ticket = fire.ticket
            if fire.finish is not None or ticket.split or self.flying.get(ticket.item_id) is not fire:
                continue
            if fire.next_run_time is None and fire.overriding is None:
                continue  # removed meanwhile
            next_due = due_of(fire.next_run_time)
            due = split_due_ms is not None and next_due is not None and next_due <= split_due_ms
            if not (ticket.since <= oldest or due or fire.overriding is not None) or not self._may_split(fire):
                self._young.append(fire)
                continue
            item = self._occurrence(fire, server_now_ms + self._lease_ms)
            chosen.setdefault(ticket.shard, []).append((fire, item))
        parcels = self._scheduled({shard: [item for _, item in pairs] for shard, pairs in chosen.items()})
        for shard, pairs in chosen.items():
            for fire, item in pairs:
                ticket = fire.ticket
                settlements.setdefault((shard, ticket.claim), []).append((None, self._successor(fire)))
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
        held: dict[tuple[int, int], list[str]] = {}
        split: dict[int, list[Alteration]] = {}
        for fire in list(self.flying.values()):
            ticket: Ticket = fire.ticket
            if not alive(fire):
                continue
            if ticket.split:
                beat = Alteration(ticket.item_id, "r", server_now_ms + self._lease_ms)
                split.setdefault(ticket.shard, []).append(beat)
            else:
                held.setdefault((ticket.shard, ticket.claim), []).append(ticket.item_id)
        parcels = []
        for (shard, claim), ids in held.items():
            for at in range(0, len(ids), MAX_BATCH):
                call: Call[Any] = Call(shard, Extend(claim, ids[at : at + MAX_BATCH], self._lease_ms))
                parcels.append(Parcel(call, [], self._ignored))
        for shard, beats in split.items():
            for at in range(0, len(beats), MAX_BATCH):
                call = Call(shard, Change(beats[at : at + MAX_BATCH], ""))
                parcels.append(Parcel(call, [], self._ignored))
        return parcels

    # Answers.

    def _settled(self, answer: Any, fires: Sequence[Fire | None]) -> None:
        for fire, outcome in zip(fires, answer.outcomes, strict=True):
            if fire is None:
                continue
            ticket: Ticket = fire.ticket
            if self.flying.get(ticket.item_id) is fire:
                del self.flying[ticket.item_id]
            if outcome is Outcome.STALE and fire.finish is not None:
                # its lease had ended: should it come back to this process, it has run already
                self._orphans[ticket.item_id, ticket.due_ms] = fire
                while len(self._orphans) > ORPHANS_AT_MOST:
                    self._orphans.popitem(last=False)

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


def next_run_of(fire: Fire) -> datetime | None:
    """When a fire's job runs again, as far as this process knows."""
    return fire.overriding.next_run_time if fire.overriding is not None else fire.next_run_time

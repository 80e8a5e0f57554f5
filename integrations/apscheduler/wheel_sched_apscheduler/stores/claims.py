"""In-flight claims: the occurrences that this process has claimed, until the store knows how each one ended.

A claimed job stays in the store under a lease. The jobstore reports to this module how occurrences end, and the module
makes commands for the store from these reports, without I/O. One round trip carries many commands, and also the next
claim if possible.

    the occurrence             what the commands do
    ended, it was the last     settle the job as Done
    ended, the job runs again  settle the job as Next: the job waits for its next run time
    runs, the job runs again   *split*: store a split item `<run time>\\0<job id>`, due when the lease would end, and
                               settle the job as Next. When the run ends, delete the split item
    put back (`release`)       settle the job as Next at its old due time, or later
    cannot be run here         settle the job as Next after a while, or as Held: see `loading`

So with at-least-once delivery an occurrence is in the store until it has ended. While the run is short, or if it is the
last one, the job's own record represents it. If another run takes longer than `SPLIT_AFTER_S`, or if the next run of
the job is due, a split item represents it. If the process dies, the lease ends. The job or the split item is then due
again, and the next process that claims gets it.

Other processes may change a job while it is in flight. If one has replaced the job's record, the store refuses the
settlement (OTHER_VERSION). This module then reads the record again and makes a new settlement. The new settlement has
the planned run time, unless the change has set another one. A new job may also take the id of a job in its last run.
The process that adds the new job moves the old run to the split item `<due>\\0<job id>`, under the same claim. The
store then finds no claim under the job's id (STALE), and this module settles the split item.

Invariant. An occurrence that this process can run is in `in_flight` from its claim until the store has answered its
last settlement. A command whose answer was lost, other than a heartbeat, is sent again unchanged, with the same request
token if it has one.

Threads: `gather` and the handlers of answers need the tracker's lock; any thread calls `end`, `release` and `settle`.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from wheel_sched.store import Done, Item, Next, Outcome, Settlement
from wheel_sched.store.core.call import Call, new_token
from wheel_sched.store.core.change import Alteration, Change
from wheel_sched.store.core.get import Get
from wheel_sched.store.core.schedule import Schedule
from wheel_sched.store.core.settle import Extend, Settle
from wheel_sched.store.fair_shares.operations import CarryPlaces, FinishAttempts
from wheel_sched_apscheduler.occurrence import Occurrence
from wheel_sched_apscheduler.stores.layout import (
    ClaimHandle,
    PendingCommand,
    PendingSettlement,
    RunWriter,
    commands_of,
    due_of,
    is_put_back,
    split_item_id,
)

SPLIT_AFTER_S = 0.05  # a longer run is split, so that the job is free for its next run and for changes
ORPHANS_AT_MOST = 10_000  # occurrences whose runs ended and were settled too late; this process may claim them again


class _Gathered:
    """What one round trip must write to the store, grouped by shard. Settlements are also grouped by claim."""

    def __init__(self) -> None:
        self.settlements: dict[tuple[int, int], list[PendingSettlement]] = {}
        self.changes: dict[int, list[tuple[Occurrence, Alteration]]] = {}
        self.items: dict[int, list[Item]] = {}
        self.places_carried: dict[int, list[tuple[str, str]]] = {}
        self.places_freed: dict[int, list[str]] = {}

    def settle(self, pending: PendingSettlement) -> None:
        self.settlements.setdefault((pending.shard, pending.claim_number), []).append(pending)

    def change(self, occurrence: Occurrence, alteration: Alteration) -> None:
        self.changes.setdefault(occurrence.handle.shard, []).append((occurrence, alteration))

    def store(self, shard: int, item: Item) -> None:
        self.items.setdefault(shard, []).append(item)


class InFlightClaims:
    """The occurrences that this process has claimed, and the commands that report their ends to the store.

    Args:
        writer: makes the settlements and the split items (runs that are stored in items of their own).
        lease_ms: the time after which a claim ends if it is not extended.
        lost: called with an occurrence that its executor never received or has lost. The store hands the occurrence
            out again.
        counts_runs: whether runs take places of a fair key (`fair_jobs`): a run that is split then keeps its place
            under the id of its split item. Defaults to False.
    """

    def __init__(
        self, writer: RunWriter, lease_ms: int, lost: Callable[[Occurrence], Any], *, counts_runs: bool = False
    ) -> None:
        self._writer = writer
        self._lease_ms = lease_ms
        self._lost = lost
        self._counts_runs = counts_runs
        self.in_flight: dict[str, Occurrence] = {}
        self._ended: deque[Occurrence] = deque()
        self._released: deque[tuple[Occurrence, int | None]] = deque()
        self._young: deque[Occurrence] = deque()  # submitted and not split, of jobs that run again; oldest first
        self._unsent: list[PendingCommand] = []
        self._replaced: deque[PendingSettlement] = deque()  # settlements whose records must be read again
        self._decided: deque[PendingSettlement] = deque()  # settlements that are ready to be sent
        self._orphans: OrderedDict[tuple[str, int, int], Occurrence] = OrderedDict()

    def __len__(self) -> int:
        return len(self.in_flight)

    @property
    def waiting(self) -> bool:
        """Whether commands wait to be sent to the store immediately."""
        return bool(self._ended or self._released or self._unsent or self._replaced or self._decided)

    def next_split_s(self, now_s: float) -> float | None:
        """The seconds until a running job must be split (stored in an item of its own); None = there is none."""
        return max(0.0, self._young[0].handle.since + SPLIT_AFTER_S - now_s) if self._young else None

    # Reports about occurrences.

    def add(self, occurrence: Occurrence) -> None:
        """Add a claimed occurrence."""
        self.in_flight[occurrence.handle.item_id] = occurrence

    def _forget(self, occurrence: Occurrence) -> None:
        """Remove an occurrence, unless another one has taken its item id."""
        item_id = occurrence.handle.item_id
        if self.in_flight.get(item_id) is occurrence:
            del self.in_flight[item_id]

    def continue_under(self, item_id: str, due_ms: int, claim_number: int, version: int) -> bool:
        """If a run is known, continue it under a new claim, after its old lease has ended. Returns whether it is known.

        A run is known if it is in flight in this process, or if it has ended here and was not settled in time.

        Args:
            item_id: the id of the item that was claimed again.
            due_ms: the due time of the item.
            claim_number: the number of the new claim.
            version: the version of the item's record.
        """
        occurrence = self.in_flight.get(item_id)
        if occurrence is not None and occurrence.handle.claim_number != claim_number:
            handle = occurrence.handle
            if not handle.split_item and not handle.split and handle.version != version:
                self._move_beside(occurrence)  # the claimed item is another job with the same id
            elif not occurrence.alive and occurrence.finish is None:
                del self.in_flight[item_id]
                self._lost(occurrence)
                return False
            elif handle.split or handle.due_ms == due_ms:
                handle.claim_number, handle.due_ms, handle.stale = claim_number, due_ms, False
                handle.split_item, handle.split = handle.split_item or handle.split, False
                return True
        orphan = self._orphans.pop((item_id, due_ms, version), None)
        if orphan is None:
            return False
        handle = orphan.handle
        handle.claim_number, handle.item_id, handle.split_item = claim_number, item_id, item_id != orphan.job_id
        self.add(orphan)
        self._ended.append(orphan)
        return True

    def _move_beside(self, occurrence: Occurrence) -> None:
        """Note that the store has moved the claim to an item of its own, because a new job has taken the job's id."""
        handle: ClaimHandle = occurrence.handle
        self._forget(occurrence)
        handle.item_id, handle.split_item = split_item_id(occurrence.job_id, handle.due_ms), True
        self.add(occurrence)

    def submitted(self, occurrences: Iterable[Occurrence]) -> None:
        """Record that the scheduler has planned these occurrences and submits them to executors."""
        for occurrence in occurrences:
            handle: ClaimHandle = occurrence.handle
            if occurrence.next_run_time is not None and not handle.split_item and not handle.split:
                self._young.append(occurrence)

    def end(self, occurrence: Occurrence) -> None:
        """Note that an occurrence has ended. Any thread may call it."""
        self._ended.append(occurrence)

    def release(self, occurrence: Occurrence, due_ms: int | None) -> None:
        """Put an occurrence back. It is due again at `due_ms`; None = at its old due time. Any thread may call it."""
        self._released.append((occurrence, due_ms))

    def settle(self, shard: int, claim_number: int, settlement: Settlement) -> None:
        """Settle a claimed item that did not become an occurrence. Any thread may call it."""
        self._decided.append(PendingSettlement(shard, claim_number, settlement))

    # Commands for the store.

    def gather(self, server_now_ms: int, *, split_due_ms: int | None = None) -> list[PendingCommand]:
        """The commands for the store that carry out what was reported since the last call, and split runs.

        To split a run is to store it in an item of its own. Then its job can be due again. A long run is always split
        if its job runs again.

        Args:
            server_now_ms: the store's time.
            split_due_ms: also split each run whose job is due again at this time or earlier. Defaults to None: no more.
        """
        commands, self._unsent = self._unsent, []
        gathered = _Gathered()
        while self._decided:
            gathered.settle(self._decided.popleft())
        while self._replaced:
            pending = self._replaced.popleft()
            commands.append(PendingCommand(Call(pending.shard, Get([pending.settlement.id])), [pending], self._read))
        self._gather_ended(gathered)
        self._gather_released(gathered)
        self._gather_splits(gathered, server_now_ms, split_due_ms)
        # items first: a split item must be stored before its job is free
        commands += commands_of(gathered.items, lambda shard, batch: Call(shard, Schedule(batch, new_token())))
        # keep the places first: a settlement frees the place that its item still has
        commands += commands_of(gathered.places_carried, lambda shard, batch: Call(shard, CarryPlaces(batch)))
        commands += commands_of(gathered.places_freed, lambda shard, batch: Call(shard, FinishAttempts(batch)))
        commands += commands_of(
            gathered.settlements,
            lambda key, batch: Call(key[0], Settle(key[1], [pending.settlement for pending in batch])),
            self._settled,
        )
        return commands + commands_of(
            gathered.changes,
            lambda shard, batch: Call(shard, Change([alteration for _, alteration in batch], new_token())),
            self._changed,
        )

    def keep(self, commands: Iterable[PendingCommand]) -> None:
        """Keep commands whose answers were lost, to repeat them unchanged."""
        self._unsent.extend(commands)

    def _gather_ended(self, gathered: _Gathered) -> None:
        early = []
        while self._ended:
            occurrence = self._ended.popleft()
            handle: ClaimHandle = occurrence.handle
            if not occurrence.planned:
                early.append(occurrence)  # it ended before the pass had planned it
            elif handle.split:
                gathered.change(occurrence, Alteration(handle.item_id, "c"))
                self._free_place(gathered, handle)
            else:
                settlement = self._writer.settlement(occurrence)
                gathered.settle(PendingSettlement(handle.shard, handle.claim_number, settlement, occurrence))
        self._ended.extend(early)

    def _gather_released(self, gathered: _Gathered) -> None:
        while self._released:
            occurrence, due_ms = self._released.popleft()
            handle: ClaimHandle = occurrence.handle
            due = handle.due_ms if due_ms is None else due_ms
            if handle.gone:
                gathered.store(handle.shard, self._writer.split_item_of(occurrence, due, waiting=True))
            elif handle.split:
                gathered.change(occurrence, Alteration(handle.item_id, "r", due))
                self._free_place(gathered, handle)
            else:
                settlement = self._writer.put_back(occurrence, due)
                gathered.settle(PendingSettlement(handle.shard, handle.claim_number, settlement, occurrence))

    def _free_place(self, gathered: _Gathered, handle: ClaimHandle) -> None:
        """Free the place of a run that was split. The store frees the place of any other run when it is settled."""
        if self._counts_runs:
            gathered.places_freed.setdefault(handle.shard, []).append(handle.item_id)

    def _gather_splits(self, gathered: _Gathered, server_now_ms: int, split_due_ms: int | None) -> None:
        young, self._young = self._young, deque()
        oldest = time.monotonic() - SPLIT_AFTER_S
        for occurrence in young:
            handle: ClaimHandle = occurrence.handle
            if occurrence.finish is not None or handle.split or handle.split_item or occurrence.next_run_time is None:
                continue
            if self.in_flight.get(handle.item_id) is not occurrence:
                continue
            next_due = due_of(occurrence.next_run_time)
            due = split_due_ms is not None and next_due is not None and next_due <= split_due_ms
            if handle.since > oldest and not due:
                self._young.append(occurrence)
                continue
            item = self._writer.split_item_of(occurrence, server_now_ms + self._lease_ms)
            successor = self._writer.successor(occurrence, running=True)
            gathered.store(handle.shard, item)
            gathered.settle(PendingSettlement(handle.shard, handle.claim_number, successor, occurrence, split=True))
            if self._counts_runs:
                gathered.places_carried.setdefault(handle.shard, []).append((handle.item_id, item.id))
            self.in_flight.pop(handle.item_id, None)
            handle.item_id, handle.split = item.id, True
            self.add(occurrence)

    def heartbeats(self, server_now_ms: int, alive: Callable[[Occurrence], bool]) -> list[PendingCommand]:
        """Commands that extend the leases of the occurrences for which `alive` returns True."""
        held: dict[tuple[int, int], list[tuple[Occurrence, str]]] = {}
        split: dict[int, list[Alteration]] = {}
        kept: dict[int, list[tuple[str, str]]] = {}
        for occurrence in list(self.in_flight.values()):
            handle: ClaimHandle = occurrence.handle
            if not alive(occurrence):
                continue
            if self._counts_runs:
                kept.setdefault(handle.shard, []).append((handle.item_id, handle.item_id))
            if handle.split:
                beat = Alteration(handle.item_id, "r", server_now_ms + self._lease_ms)
                split.setdefault(handle.shard, []).append(beat)
            else:
                place = held.setdefault((handle.shard, handle.claim_number), [])
                place.append((occurrence, handle.item_id))
                if handle.stale and not handle.split_item:
                    place.append((occurrence, split_item_id(occurrence.job_id, handle.due_ms)))
        commands = commands_of(
            held,
            lambda key, batch: Call(key[0], Extend(key[1], [item_id for _, item_id in batch], self._lease_ms)),
            self._extended,
        )
        commands += commands_of(kept, lambda shard, batch: Call(shard, CarryPlaces(batch)))
        return commands + commands_of(split, lambda shard, batch: Call(shard, Change(batch, "")))

    # Answers.

    def _settled(self, answer: Any, about: Sequence[PendingSettlement]) -> None:
        for pending, outcome in zip(about, answer.outcomes, strict=True):
            occurrence = pending.occurrence
            if occurrence is None:
                if outcome is Outcome.OTHER_VERSION:  # the job was changed: perhaps it can be run now
                    self.settle(pending.shard, pending.claim_number, Next(pending.settlement.id, 0))
                continue
            handle: ClaimHandle = occurrence.handle
            if outcome is Outcome.OTHER_VERSION:
                self._replaced.append(pending)
            elif pending.split:
                if outcome is Outcome.STALE and pending.settlement.id == occurrence.job_id:
                    # a new job has taken the id, so the old run was moved, and the split item is a second copy of it
                    moved = split_item_id(occurrence.job_id, handle.due_ms)
                    self._decided.append(pending._replace(settlement=Done(moved)))
            elif outcome is Outcome.STALE and not handle.split_item:
                self._move_beside(occurrence)
                before = pending.settlement
                settlement: Settlement = Done(handle.item_id)
                if isinstance(before, Next) and is_put_back(before):
                    settlement = Next(handle.item_id, before.due_ms)
                self._decided.append(pending._replace(settlement=settlement))
            else:
                self._settled_for_good(occurrence, outcome)

    def _settled_for_good(self, occurrence: Occurrence, outcome: Outcome) -> None:
        handle: ClaimHandle = occurrence.handle
        self._forget(occurrence)
        handle.stale = outcome is Outcome.STALE
        if handle.unbegun and outcome is Outcome.DONE:  # the run has left the store now, and no process runs it
            handle.unbegun, handle.gone = False, True
            self._released.append((occurrence, None))
        if handle.stale and occurrence.finish is not None:
            # the lease had ended, so this process may claim the run again, and must then know that it has run
            for item_id in {handle.item_id, handle.item.id}:
                self._orphans[item_id, handle.due_ms, handle.version] = occurrence
            while len(self._orphans) > ORPHANS_AT_MOST:
                self._orphans.popitem(last=False)

    def _read(self, answer: Any, about: Sequence[PendingSettlement]) -> None:
        """Handle records that were read again: make a new settlement from the present record of each changed job.

        Args:
            answer: the records.
            about: the settlements that the store refused, because another process had changed the job meanwhile.
        """
        for pending, found in zip(about, answer, strict=True):
            settlement = pending.settlement  # if this process has lost the claim, the store refuses this settlement
            if pending.occurrence is not None and found is not None and found.state == "leased":
                if isinstance(settlement, Next) and is_put_back(settlement):
                    settlement = self._writer.put_back_again(pending.occurrence, found, settlement.due_ms)
                else:
                    settlement = self._writer.merged(pending.occurrence, found, running=pending.split)
            self._decided.append(pending._replace(settlement=settlement))

    def _extended(self, answer: Any, about: Sequence[tuple[Occurrence, str]]) -> None:
        for (occurrence, item_id), outcome in zip(about, answer.outcomes, strict=True):
            if item_id == occurrence.handle.item_id:
                occurrence.handle.stale = outcome is Outcome.STALE
            elif outcome is not Outcome.STALE and not occurrence.handle.split:
                self._move_beside(occurrence)

    def _changed(self, _: Any, about: Sequence[tuple[Occurrence, Alteration]]) -> None:
        for occurrence, _alteration in about:
            self._forget(occurrence)

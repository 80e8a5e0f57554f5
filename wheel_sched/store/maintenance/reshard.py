"""Reshard: give a namespace another number of shards, offline, so that a crash at any point loses nothing.

    look    end expired leases; refuse if an item is in flight, an ordering key is closed or a dispatcher listens
    freeze  shard 0 first: the reason of its freeze is the plan, and `resume` reads the plan there
    open    new shards, frozen as well
    move    page by page: store in the new shard, then remove from the old; the next run removes an id that is in both
    close   shards beyond the new count give their counters of events to shard 0 and are deleted
    thaw    shard 0 last; the same step writes the new count into the shard

Every step may be repeated, so `resume` runs all of them again. A frozen namespace refuses every write but those
of maintenance, even of a process that still runs. After the thaw, every script that writes refuses a process with the
old number of shards.
Lapse counts (how often a lease ran out) are not moved; they start from 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from wheel_sched.errors import NamespaceMismatch, Rejected, StoreError
from wheel_sched.store.attempt_counts import AttemptCount, ListCounts, MoveCounts
from wheel_sched.store.core.call import Call, Operation
from wheel_sched.store.core.counts import Count, Counts
from wheel_sched.store.core.delay_store import Backend
from wheel_sched.store.core.get import Get
from wheel_sched.store.core.items import MAX_BATCH, MAX_DUE_MS, Found, State
from wheel_sched.store.core.listing import IdPage, ListIds
from wheel_sched.store.core.plans import Open, shard_of
from wheel_sched.store.core.restore import Restore
from wheel_sched.store.core.sweep import Sweep
from wheel_sched.store.maintenance.listeners import listeners
from wheel_sched.store.maintenance.operations import Freeze, Lift, ShardState
from wheel_sched.store.ordering.operations import CountParked

PAGE = 250  # items in one step; the bodies of a page travel to this process and back
_PLACES: tuple[State, ...] = ("due", "held", "dead")
_PLAN = re.compile(r"resharding (\d+) to (\d+)")

Progress = Callable[[str, int], None]


class ReshardRefused(StoreError):
    """The namespace is in use, or in an unexpected state; the message says what was changed."""


@dataclass(frozen=True, slots=True)
class Resharded:
    """The number of shards before and after a reshard, and how many items and attempt counts this run moved.

    What an earlier, interrupted run moved is not counted.
    """

    before: int
    after: int
    moved: int
    attempt_counts: int


def reshard(
    backend: Backend, target: int | None, *, resume: bool = False, progress: Progress | None = None
) -> Resharded:
    """Reshard the namespace of `backend` to `target` shards.

    Args:
        backend: the backend of the namespace; it need not be open as a store.
        target: the new number of shards, 1 to 1024; None with `resume`.
        resume: continue an interrupted run. Defaults to False.
        progress: called with (step, items moved so far).

    Raises:
        ReshardRefused: the text says why, and what was changed.
        NamespaceMismatch: there is no such namespace.
        Rejected: `target` is not a number from 1 to 1024.
    """
    if target is not None and (type(target) is not int or not 1 <= target <= 1024):
        raise Rejected(f"expected the number of shards to be from 1 to 1024, got: {target!r}; nothing was changed")
    return _Run(backend, progress or (lambda step, moved: None)).run(target, resume)


class _Run:
    """One run of a reshard."""

    def __init__(self, backend: Backend, progress: Progress) -> None:
        self._backend = backend
        self._progress = progress
        self._moved = 0
        self._attempt_counts = 0
        self._before = self._after = 0
        self._resuming = False

    def run(self, target: int | None, resume: bool) -> Resharded:
        first = self._state(0)
        if first is None:
            raise NamespaceMismatch("the namespace does not exist: nothing was changed")
        if first.frozen is not None:
            self._read_plan(first.frozen, target, resume)
        else:
            if resume or target is None:
                raise ReshardRefused(
                    f"there is nothing to resume: the namespace has {first.shards} shards and is not frozen"
                )
            self._before, self._after = first.shards, target
            if target == first.shards:
                return Resharded(target, target, 0, 0)
            self._look()
        self._freeze()
        self._open()
        present = [s for s in range(max(self._before, self._after)) if self._state(s) is not None]
        self._share_pauses(present)
        for shard in present:
            self._move_items(shard)
            self._move_attempt_counts(shard)
        self._close([shard for shard in present if shard >= self._after])
        self._thaw()
        return Resharded(self._before, self._after, self._moved, self._attempt_counts)

    # -- before anything changes

    def _read_plan(self, frozen: str, target: int | None, resume: bool) -> None:
        plan = _PLAN.fullmatch(frozen)
        if plan is None:
            raise ReshardRefused(f"the namespace is frozen for another reason ({frozen}): nothing was changed")
        self._before, self._after = int(plan[1]), int(plan[2])
        self._resuming = True
        if not resume:
            raise ReshardRefused(f"{frozen} was interrupted: nothing was changed now; continue with --resume")
        if target not in (None, self._after):
            raise ReshardRefused(f"{frozen} was interrupted; it can only be resumed to {self._after} shards")

    def _look(self) -> None:
        for shard in range(self._before):
            swept = self._ask(shard, Sweep())
            while swept.recovered:
                swept = self._ask(shard, Sweep())
        claims = sum(self._ask(shard, Freeze("look")).claims for shard in range(self._before))
        if claims:
            raise ReshardRefused(
                f"{claims} items are in flight: nothing was changed; stop all dispatchers, wait until their leases "
                "have ended, and try again"
            )
        closed = sum(self._ask(shard, CountParked(()))[0] for shard in range(self._before))
        if closed:
            raise ReshardRefused(
                f"{closed} ordering keys are closed: nothing was changed; wait until their heads have ended (see "
                "`wheel-sched keys`) and try again"
            )
        count = listeners(self._backend, self._before)
        if count:
            raise ReshardRefused(
                f"{count} dispatcher{'s are' if count > 1 else ' is'} running on this namespace: nothing was changed; "
                "stop every process that uses it and try again"
            )

    # -- the steps, each repeatable

    def _freeze(self) -> None:
        plan = f"resharding {self._before} to {self._after}"
        frozen: list[int] = []
        for shard in range(self._before):
            if shard >= self._after and self._resuming and self._state(shard) is None:
                continue  # closed by the run that was interrupted
            state = self._ask(shard, Freeze("freeze", [plan]))
            if state.frozen != plan:
                why = f"frozen for another reason ({state.frozen})" if state.frozen else "at work again"
                raise ReshardRefused(f"shard {shard} is {why}: {self._take_back(frozen)}")
            frozen.append(shard)
            self._progress("freeze", self._moved)

    def _take_back(self, frozen: Sequence[int]) -> str:
        """Thaw the shards in `frozen`, unless this run resumes an earlier one.

        Returns the end of the refusal's text: what was changed, and what to do next.
        """
        if self._resuming:
            return "no more was moved and the namespace stays frozen; stop every process that uses it and resume again"
        for shard in reversed(frozen):
            self._ask(shard, Freeze("thaw", [self._before]))
        return "nothing was changed; stop every process that uses the namespace and try again"

    def _open(self) -> None:
        clock = self._ask(0, Open(self._before, "server"))[2]
        plan = f"resharding {self._before} to {self._after}"
        for shard in range(self._before, self._after):
            self._ask(shard, Open(self._after, clock))
            self._ask(shard, Freeze("freeze", [plan]))
            self._progress("open", self._moved)

    def _share_pauses(self, present: Sequence[int]) -> None:
        paused: dict[str, int] = {}
        for shard in present:
            counts: Counts = self._ask(shard, Count())
            paused.update(counts.paused)
        if paused:
            for shard in range(self._after):
                self._ask(shard, Freeze("adopt", ["", len(paused), *_flat(paused)]))

    def _move_items(self, source: int) -> None:
        for state in _PLACES:
            last: tuple[str, int] | None = None
            while True:
                page: IdPage = self._ask(source, ListIds(state, 0, MAX_DUE_MS, last, PAGE))
                if not page.found:
                    break
                scores = dict(page.found)
                ids = list(scores)
                found = [item for item in self._ask(source, Get(ids)) if item is not None]
                self._hand_over(source, found)
                last = page.last
                if not page.more:
                    break

    def _hand_over(self, source: int, found: Sequence[Found]) -> None:
        leaving: dict[int, list[Found]] = {}
        for item in found:
            target = shard_of(item.route or item.id, self._after)
            if target != source:
                leaving.setdefault(target, []).append(item)
        for target, items in leaving.items():
            put = self._ask(target, Restore(items))
            if put < len(items):
                self._ensure_same(source, target, items)
            self._progress("copied", self._moved)
            self._moved += self._ask(source, Lift([item.id for item in items]))
            self._progress("lifted", self._moved)

    def _ensure_same(self, source: int, target: int, items: Sequence[Found]) -> None:
        """Raise `ReshardRefused` if the item of an id has other content in the shard `target`.

        Equal content is no error: an interrupted run has put the item there.
        """
        there: list[Found | None] = self._ask(target, Get([item.id for item in items]))
        for mine, other in zip(items, there, strict=True):
            if other is None or (mine.body, mine.topic, mine.version) != (other.body, other.topic, other.version):
                raise ReshardRefused(
                    f"the id {mine.id!r} lies in shard {source} and, with other content, in shard {target}: both were "
                    "left as they are and the namespace stays frozen; delete one of the two and continue with --resume"
                )

    def _move_attempt_counts(self, source: int) -> None:
        start = 0
        while True:
            page: list[AttemptCount] = self._ask(source, ListCounts(start))
            leaving: dict[int, list[AttemptCount]] = {}
            for record in page:
                target = shard_of(record.key, self._after)
                if target != source:
                    leaving.setdefault(target, []).append(record)
            for target, records in leaving.items():
                self._ask(target, MoveCounts("put", [part for r in records for part in (r.key, r.score)]))
                self._ask(source, MoveCounts("remove", [record.key for record in records]))
                self._attempt_counts += len(records)
                self._progress("attempt counts", self._moved)
            if len(page) < MAX_BATCH:
                return
            start += len(page) - sum(map(len, leaving.values()))

    def _close(self, beyond: Sequence[int]) -> None:
        for shard in beyond:
            counts: Counts = self._ask(shard, Count())
            history = {f"{event}:{topic}": count for (event, topic), count in counts.ever.items()}
            self._ask(0, Freeze("adopt", [str(shard), 0, *_flat(history)]))
            self._progress("adopted", self._moved)
            self._ask(shard, Freeze("drop"))
            self._progress("dropped", self._moved)

    def _thaw(self) -> None:
        for shard in reversed(range(self._after)):
            self._ask(shard, Freeze("thaw", [self._after]))
            self._progress("thaw", self._moved)

    def _state(self, shard: int) -> ShardState | None:
        """A shard's state, None when there is no such shard."""
        try:
            state: ShardState = self._ask(shard, Freeze("look"))
        except NamespaceMismatch:
            return None
        return state

    def _ask(self, shard: int, operation: Operation[Any]) -> Any:
        (answer,) = self._backend.execute([Call(shard, operation)])
        if isinstance(answer, Exception):
            raise answer
        return answer


def _flat(pairs: dict[str, int]) -> list[str | int]:
    return [part for pair in pairs.items() for part in pair]

"""Which jobs the store handed out in a history (a simulated run), when, and to whom, and which leases it extended.

The simulated server keeps its answers to claims and to calls that extend leases, with the true time. From these the
checker learns whether a process that died had claimed a run, and whether the server lost the claim under which a
process ran a job. If a lease ended, the checker also learns since when the process had not reached the store. After the
end of a lease, the store hands the run out again, see docs/guarantees.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wheel_sched.simulation.calls import MS, START_NS
from wheel_sched.simulation.store import StoreServer
from wheel_sched.simulation.world import World
from wheel_sched.store import Claim, Claimed, Outcome
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.change import Change
from wheel_sched.store.core.claim import ClaimDue
from wheel_sched.store.core.schedule import Schedule
from wheel_sched.store.core.settle import Extend
from wheel_sched_apscheduler.codec import JobCodec
from wheel_sched_apscheduler.run_times import to_ms
from wheel_sched_apscheduler.simulation.scenario import LEASE_MS
from wheel_sched_apscheduler.stores.layout import job_id_of

START_MS = START_NS // MS
_JOB_ID = re.compile(r"job(\d+)")


@dataclass(frozen=True, slots=True, eq=False)
class HandedOut:
    """A job, or a run in an item of its own (a split item), that a claim has handed out. Times are true time in ms.

    Args:
        number: the job's number in the history.
        item_id: the id of the claimed item: of the job, or of the split item.
        run_ms: the first run time that was handed out. The claim also handed out all later run times that were due.
        token: the number of the claim.
        process: the name of the process that claimed it.
        at_ms: when the server performed the claim.
        clock_ms: the time that the clocks of the server and of the process had both reached then.
        call: the claim.
    """

    number: int
    item_id: str
    run_ms: int
    token: int
    process: str
    at_ms: int
    clock_ms: int
    call: Call[Any]

    def covers(self, at: int) -> bool:
        """Whether this claim handed out the run time `at`, which is in ms of true time.

        It did if `at` is not before `run_ms`, and the clocks of the server and of the process had both reached `at`.
        """
        return self.run_ms <= at <= self.clock_ms


@dataclass(frozen=True, slots=True)
class Hold:
    """A call that gave a process the lease of an item, or extended it.

    Args:
        item_id: the id of the item.
        process: the name of the process.
        at_ms: when the server performed the call, in ms of true time.
        since_ms: when the lease began, in ms of true time. Some calls give the end of the lease instead of its length.
            If such a call arrives late, the lease began before `at_ms`.
    """

    item_id: str
    process: str
    at_ms: int
    since_ms: int


class JobServer(StoreServer):
    """The server of the delay store. It also records what its claims have handed out, and the leases."""

    def __init__(self, world: World, shards: int) -> None:
        super().__init__(world, shards)
        self.handed_out: list[HandedOut] = []
        self.holds: list[Hold] = []
        self._codec = JobCodec()

    def perform(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Perform calls, and record what they handed out and which leases they extended."""
        answers = super().perform(calls)
        for call, answer in zip(calls, answers, strict=True):
            if isinstance(call.operation, ClaimDue) and isinstance(answer, Claim):
                self._keep(call, answer)
            self._keep_holds(call, answer)
        return answers

    def _keep_holds(self, call: Call[Any], answer: Any) -> None:
        operation = call.operation
        if isinstance(answer, Exception):
            return
        if isinstance(operation, ClaimDue):
            ends: list[tuple[str, int | None]] = [(item.id, None) for item in answer.items]
        elif isinstance(operation, Extend):
            pairs = zip(operation.ids, answer.outcomes, strict=True)
            ends = [(item_id, None) for item_id, outcome in pairs if outcome is Outcome.DONE]
        elif isinstance(operation, Schedule):  # a split item is due when the lease of its run ends
            ends = [(item.id, item.due_ms) for item in operation.items]
        elif isinstance(operation, Change):
            changes = zip(operation.alterations, answer, strict=True)
            ends = [
                (change.id, int(change.argument))
                for change, outcome in changes
                if change.verb == "r" and outcome is Outcome.DONE
            ]
        else:
            return
        process, at_ms, wall_ms = self.world.scheduler.process.name, self.world.now_ms, self.wall_ms()
        for item_id, end_ms in ends:
            since_ms = at_ms if end_ms is None else min(at_ms, at_ms + end_ms - wall_ms - LEASE_MS)
            self.holds.append(Hold(item_id, process, at_ms, since_ms))

    def last_hold(self, handed_out: HandedOut, process: str) -> Hold | None:
        """The last call before the claim `handed_out` that gave `process` the lease of the same item, or extended it.

        None: there is no such call.
        """
        return next(
            (
                hold
                for hold in reversed(self.holds)
                if (hold.item_id, hold.process) == (handed_out.item_id, process) and hold.at_ms < handed_out.at_ms
            ),
            None,
        )

    def _keep(self, call: Call[Any], claim: Claim) -> None:
        if any(one.call is call and one.token == claim.number for one in self.handed_out):
            return  # the request came a second time, and got the answer of the first
        scheduler = self.world.scheduler
        process, at_ms = scheduler.process.name, self.world.now_ms
        clock_ms = min(scheduler.wall_ns() // MS, claim.now_us // 1_000) - START_MS
        for item in claim.items:
            found = _JOB_ID.fullmatch(job_id_of(item.id))
            run_ms = None if found is None else self._run_ms(item)
            if found is not None and run_ms is not None:
                entry = HandedOut(int(found[1]), item.id, run_ms, claim.number, process, at_ms, clock_ms, call)
                self.handed_out.append(entry)

    def _run_ms(self, item: Claimed) -> int | None:
        if item.id != job_id_of(item.id):
            return int(item.id.partition("\0")[0]) - START_MS
        moment = self._codec.next_run_time(item.body)
        return None if moment is None else to_ms(moment) - START_MS

    def lost_claims(self, number: int) -> list[HandedOut]:
        """The claims in `handed_out` of one job that the server has lost, see `StoreServer.lost_calls`."""
        return [
            one for one in self.handed_out if one.number == number and any(one.call is call for call in self.lost_calls)
        ]

    def undone_jobs(self) -> set[int]:
        """The numbers of the jobs about which the server has lost a write. `appendfsync everysec` allows that."""
        return {int(number) for call in self.lost_calls for number in _JOB_ID.findall(repr(call))}

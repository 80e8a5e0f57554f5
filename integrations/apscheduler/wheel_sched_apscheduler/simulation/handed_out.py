"""Which jobs the store handed out in a history, when, and to whom.

The server of this world keeps the answers of its claims, with the true time. So the checker knows whether a process
that died held a run, and whether the server lost the claim under which a process ran a job. A lost lease causes a
redelivery, see docs/guarantees.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wheel_sched.simulation.calls import MS, START_NS
from wheel_sched.simulation.store import StoreServer
from wheel_sched.simulation.world import World
from wheel_sched.store import Claim, Claimed
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.claim import ClaimDue
from wheel_sched_apscheduler.codec import JobCodec
from wheel_sched_apscheduler.run_times import to_ms
from wheel_sched_apscheduler.stores.layout import job_id_of

_JOB_ID = re.compile(r"job(\d+)")


@dataclass(frozen=True, slots=True, eq=False)
class HandedOut:
    """A job, or a run that lay beside its job, that a claim has handed out. All times are true time in ms.

    Args:
        number: the job's number in the history.
        run_ms: the first run time that was handed out. All later ones that were due came with it.
        token: the number of the claim.
        process: the name of the process that claimed it.
        at_ms: when the server performed the claim.
        call: the claim.
    """

    number: int
    run_ms: int
    token: int
    process: str
    at_ms: int
    call: Call[Any]


class JobServer(StoreServer):
    """The server of the delay store, which also keeps what its claims have handed out."""

    def __init__(self, world: World, shards: int) -> None:
        super().__init__(world, shards)
        self.handed_out: list[HandedOut] = []
        self._codec = JobCodec()

    def perform(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Perform calls, and keep what was handed out."""
        answers = super().perform(calls)
        for call, answer in zip(calls, answers, strict=True):
            if isinstance(call.operation, ClaimDue) and isinstance(answer, Claim):
                self._keep(call, answer)
        return answers

    def _keep(self, call: Call[Any], claim: Claim) -> None:
        if any(one.call is call and one.token == claim.number for one in self.handed_out):
            return  # the request came again, and got its first answer
        process = self.world.scheduler.process.name
        for item in claim.items:
            found = _JOB_ID.fullmatch(job_id_of(item.id))
            run_ms = None if found is None else self._run_ms(item)
            if found is not None and run_ms is not None:
                entry = HandedOut(int(found[1]), run_ms, claim.number, process, self.world.now_ms, call)
                self.handed_out.append(entry)

    def _run_ms(self, item: Claimed) -> int | None:
        if item.id != job_id_of(item.id):
            return int(item.id.partition("\0")[0]) - START_NS // MS
        moment = self._codec.next_run_time(item.body)
        return None if moment is None else to_ms(moment) - START_NS // MS

    def lost_claims(self, number: int) -> list[HandedOut]:
        """What was handed out of a job under claims that the server has lost: see `StoreServer.lost_calls`."""
        return [
            one for one in self.handed_out if one.number == number and any(one.call is call for call in self.lost_calls)
        ]

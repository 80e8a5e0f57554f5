"""Works out when a tenant of a history (a simulated run) had no free place, so that its due jobs had to wait.

With `max_in_flight`, a claimed job takes a place of its tenant, and the run gives the place back when it ends. The
checker sees claims, runs and deaths, and computes the places from these alone: it does not ask the store for its count.

    wait        while all places of its tenant are taken, a job is due and nobody can claim it
    cap         more runs of a tenant were under way at a time than the tenant has places
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from wheel_sched.simulation.calls import MS
from wheel_sched.store.core.plans import shard_of
from wheel_sched.store.fair_shares.operations import ConfigureTopic
from wheel_sched_apscheduler.simulation.handed_out import HandedOut
from wheel_sched_apscheduler.simulation.job_world import JobRun, JobWorld, most_in_flight, tenant_of
from wheel_sched_apscheduler.simulation.scenario import LEASE_MS
from wheel_sched_apscheduler.simulation.troubles import Troubles
from wheel_sched_apscheduler.stores.fair_jobs import LEASES

BEGUN_MS = 500  # a run begins within this time after its claim, in a process that does not stand still
REPORTED_MS = 300  # the end of a run is reported within this time, in a process that reaches the store
LOST_MS = LEASES * LEASE_MS  # a place is free after this time at the latest, if no process keeps it

Span = tuple[int, int]  # true times in ms: from, to


class Places:
    """The places of all tenants of one history.

    Args:
        history: the ended history.
        troubles: the faults of the history.
    """

    def __init__(self, history: JobWorld, troubles: Troubles) -> None:
        self._troubles = troubles
        self._plain = bool(history.options["plain_producer"])
        self._shards = history.options["shards"]
        most = most_in_flight(history.options)
        self._cap = max(1, most // self._shards) if most else 0
        lost_settings = any(isinstance(call.operation, ConfigureTopic) for call in history.store.lost_calls)
        self._judged = not lost_settings  # a store that has lost its settings knows no places
        self._lost_claims = {id(one) for number in history.adds for one in history.store.lost_claims(number)}
        self._runs: dict[tuple[int, str, int], list[JobRun]] = {}  # by job, process and claim
        for run in history.runs:
            self._runs.setdefault((run.number, run.process, run.token), []).append(run)
        self._claims: dict[tuple[str, int], list[HandedOut]] = {}  # by tenant and shard
        for one in history.store.handed_out if self._cap else ():
            self._claims.setdefault(self._of(one.number), []).append(one)
        self._full = {of: self._full_spans(map(self._taken, claims)) for of, claims in self._claims.items()}

    def _of(self, number: int) -> tuple[str, int]:
        """The tenant and the shard of a job."""
        return tenant_of(number, plain=self._plain), shard_of(f"job{number}", self._shards)

    # -- waits

    def waits_of(self, number: int) -> list[Span]:
        """The spans of time in which a job may have waited for a place of its tenant."""
        return self._full.get(self._of(number), [])

    def _taken(self, one: HandedOut) -> Span:
        """From when to when a claim may have kept a place.

        A long run that is stored in an item of its own, beside its job's item, may still have a place.
        """
        runs = self._runs_of(one)
        ended = max([one.at_ms + BEGUN_MS, *(run.ended_ns // MS for run in runs)])
        reported = self._troubles.claimed_by(ended) + REPORTED_MS
        died = self._troubles.death_of(one.process, one.at_ms)
        if died is not None and (died <= reported or any(run.outcome == "running" for run in runs)):
            reported = max(reported, died + LOST_MS + REPORTED_MS)
        return one.at_ms, reported

    def _runs_of(self, one: HandedOut) -> list[JobRun]:
        return self._runs.get((one.number, one.process, one.token), [])

    def _full_spans(self, taken: Iterable[Span]) -> list[Span]:
        """The spans in which at least as many places are taken as the tenant has."""
        changes = sorted((at, change) for since, until in taken for at, change in ((since, 1), (until, -1)))
        counts = accumulate(change for _, change in changes)
        spans: list[Span] = []
        since = None
        for (at, _), count in zip(changes, counts, strict=True):
            if count >= self._cap and since is None:
                since = at
            elif count < self._cap and since is not None:
                spans.append((since, at))
                since = None
        return spans

    # -- the cap

    def violations(self) -> list[str]:
        """One line for each run that was claimed although other runs had all places of its tenant."""
        found = []
        for (tenant, shard), claims in self._claims.items() if self._judged else ():
            begun = [one for one in claims if self._takes_a_place(one)]
            for one in begun:
                others = [other for other in begun if other is not one and self._runs_at(other, one.at_ms)]
                if len(others) >= self._cap and not self._is_excused([one, *others], one.at_ms):
                    found.append(
                        f"cap: job {one.number} of tenant {tenant!r} was claimed at {one.at_ms} ms in shard {shard}, "
                        f"while {len(others)} others ran: it has {self._cap} places"
                    )
        return found

    def _takes_a_place(self, one: HandedOut) -> bool:
        """Whether this is the first claim of a run. A run that is handed out again takes no second place."""
        runs = self._runs_of(one)
        return bool(runs) and not any(run.redelivered for run in runs)

    def _runs_at(self, one: HandedOut, at: int) -> bool:
        """Whether an earlier claim had a run under way at the end of a millisecond."""
        end_ns = (at + 1) * MS
        return one.at_ms < at and any(self._troubles.is_under_way(run, end_ns) for run in self._runs_of(one))

    def _is_excused(self, claims: list[HandedOut], at: int) -> bool:
        """Whether the server has lost one of these claims, or faults let one of their leases end."""
        return any(
            id(one) in self._lost_claims or self._troubles.loses_lease(one.process, one.at_ms - LEASE_MS, at)
            for one in claims
        )

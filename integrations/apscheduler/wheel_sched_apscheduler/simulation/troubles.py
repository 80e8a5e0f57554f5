"""Decides when the faults of a history (a simulated run) excuse a late run of a job, or a repeated one."""

from __future__ import annotations

from collections.abc import Sequence

from wheel_sched.simulation.calls import MS
from wheel_sched.simulation.scenario import Fault
from wheel_sched_apscheduler.simulation.job_world import JobRun, JobWorld
from wheel_sched_apscheduler.simulation.scenario import LEASE_MS

FOREVER_MS = 1 << 40
AGAIN_MS = 700  # a process that died starts again after this time
RECOVERY_MS = LEASE_MS + 3_000  # after a fault: a lease ends, and the schedulers' pauses between tries are over
START_MS = 300  # within this time the schedulers start
SOON_MS = 400  # without faults, a due job is claimed within this time
LEASE_LOST_MS = 900  # a process that does not reach the store for this time may lose its lease
LONGEST_RUN_MS = 3_000
KILLS = ("kill", "kill-before", "kill-after")


class Troubles:
    """The faults that have struck in one history, with their times. Times are true time, in ms if
    the name does not end in `_ns`.

    Args:
        history: the ended history.
    """

    def __init__(self, history: JobWorld) -> None:
        options = history.options
        self._struck = [(fault, at) for (fault, _), at in zip(history.struck, history.struck.times_ms, strict=True)]
        self._births_ms = history.births_ms
        skews = [options[f"skew-{number}"] for number in range(options["schedulers"])]
        self.ahead_ms = max(0, *skews)  # the clock of a process may be ahead of true time by this
        self._soon_ms = SOON_MS + max(0, -max(skews))
        self._spans = sorted([(0, START_MS), *self._unhealthy()])

    def _unhealthy(self) -> list[tuple[int, int]]:
        """The spans of time in which a run may be late."""
        spans = []
        behind_ms = 0
        for fault, at in self._struck:
            if fault.target == "producer" or fault.kind == "repeat-request":
                continue  # the fault delays no scheduler: it struck the producer, or the second answer to one request
            until = at + fault.amount + RECOVERY_MS
            if fault.kind in KILLS:
                until = at + AGAIN_MS + RECOVERY_MS
            elif fault.kind == "stop":
                until = at + LONGEST_RUN_MS + AGAIN_MS + RECOVERY_MS
            elif fault.kind == "step-clock":
                behind_ms -= fault.amount
                until = FOREVER_MS if behind_ms > 0 else at + RECOVERY_MS
            spans.append((at, until))
        return spans

    def claimed_by(self, at: int, waits: Sequence[tuple[int, int]] = ()) -> int:
        """The latest time at which a scheduler must have claimed a job that is due at `at`.

        Args:
            at: a time.
            waits: spans in which nobody may claim the job, see `places`. Defaults to none.
        """
        clear = at
        for begins, ends in sorted([*self._spans, *waits]) if waits else self._spans:
            if begins >= clear + self._soon_ms:
                break
            clear = max(clear, ends)
        return clear + self._soon_ms

    def death_of(self, process: str, since: int) -> int | None:
        """When the process died, at `since` or later. None: it did not die, or the name is not that of a process."""
        if process not in self._births_ms:
            return None
        host = process.partition(".")[0]
        since = max(since, self._births_ms[process])
        times = [at for fault, at in self._struck if fault.target == host and fault.kind in KILLS and at >= since]
        after = [at for name, at in self._births_ms.items() if name.startswith(f"{host}.") and at > since]
        died = min(times, default=None)
        return None if died is None or died > min(after, default=FOREVER_MS) else died

    def is_under_way(self, run: JobRun, at_ns: int) -> bool:
        """Whether a run had begun at a time, and had neither ended nor died with its process."""
        if run.began_ns > at_ns:
            return False
        if run.outcome != "running":
            return run.ended_ns > at_ns
        died = self.death_of(run.process, run.began_ns // MS)
        return died is None or died * MS > at_ns

    def is_stopped(self, process: str) -> bool:
        """Whether the process was shut down, and not killed."""
        host = process.partition(".")[0]
        since = self._births_ms.get(process, FOREVER_MS)
        until = min(
            (at for name, at in self._births_ms.items() if name.startswith(f"{host}.") and at > since),
            default=FOREVER_MS,
        )
        return any(fault.kind == "stop" and fault.target == host and since <= at <= until for fault, at in self._struck)

    def stock_breaks_off(self, what: str) -> bool:
        """Whether APScheduler's own loop ended by its own error in a pass during its shutdown.

        When `shutdown` has begun, APScheduler's `remove_job` asks no jobstore any more, finds no job and raises. The
        loop would end anyway, so this breaks no promise.

        Args:
            what: an entry of `World.broken`.
        """
        process = what.removeprefix("the thread ").partition("/")[0]
        return (
            what.startswith(f"the thread {process}/APScheduler ended by JobLookupError")
            and "in _process_jobs\n    self.remove_job(" in what
            and self.is_stopped(process)
        )

    def loses_lease(self, process: str, since: int, until: int) -> bool:
        """Whether faults between two times keep a process from the store for so long that its leases may end."""
        host = process.partition(".")[0]
        return (
            sum(
                self._kept_away_ms(fault, host)
                for fault, at in self._struck
                if since - self._lasts_ms(fault) <= at <= until
            )
            >= LEASE_LOST_MS
        )

    @staticmethod
    def _lasts_ms(fault: Fault) -> int:
        return 0 if fault.kind in ("rewind", "step-clock") else fault.amount

    @staticmethod
    def _kept_away_ms(fault: Fault, host: str) -> int:
        """How long a fault keeps a process from the store, or how much earlier it lets a lease end, in ms."""
        if fault.target == "store":
            return max(0, fault.amount) if fault.kind != "rewind" else 0
        if fault.target != host or fault.kind in KILLS or fault.kind == "stop":
            return 0
        # a request to extend a lease names its end, and may come after later ones
        return fault.amount if fault.kind in ("pause", "late-reply", "late-request") else 150

    def stood_still(self, process: str, since: int, until: int) -> bool:
        """Whether a process was paused between two times for so long that its leases may end."""
        host = process.partition(".")[0]
        return any(
            fault.kind == "pause" and fault.target == host and fault.amount >= LEASE_LOST_MS and since <= at <= until
            for fault, at in self._struck
        )

    def arrives_late(self, since: int, until: int) -> bool:
        """Whether a request that the producer sent between two times may reach the store at any later time."""
        return any(
            fault.kind == "late-request" and fault.target == "producer" and since <= at <= until
            for fault, at in self._struck
        )

    def steps_clock(self) -> bool:
        """Whether a fault has stepped the store's clock."""
        return any(fault.kind == "step-clock" for fault, _ in self._struck)

    def store_clock_ms(self, at: int) -> int:
        """The latest time that the store's clock has shown until the true time `at`, in ms since the history began."""
        furthest, offset = 0, 0
        for fault, moment in self._struck:
            if fault.kind == "step-clock" and moment <= at:
                furthest = max(furthest, moment + offset)
                offset += fault.amount
        return max(furthest, at + offset)

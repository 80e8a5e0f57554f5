"""Judges a history, a simulated run of schedulers, by the promises of docs/apscheduler.md and docs/guarantees.md.

The checker sees the answers that the producer got, the runs of job bodies, and what is left in the store. It reads no
counter of the product.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from wheel_sched.simulation.calls import MS
from wheel_sched.simulation.scenario import Scenario
from wheel_sched.simulation.trace import Trace
from wheel_sched_apscheduler.simulation.expected_runs import MOVING, Period, periods_of
from wheel_sched_apscheduler.simulation.handed_out import HandedOut
from wheel_sched_apscheduler.simulation.job_world import JobAnswer, JobRun, JobWorld
from wheel_sched_apscheduler.simulation.leaks import leaks
from wheel_sched_apscheduler.simulation.places import Places, Span
from wheel_sched_apscheduler.simulation.scenario import LEASE_MS, JobStep, draw
from wheel_sched_apscheduler.simulation.troubles import FOREVER_MS, Troubles

SETTLED_MS = 300  # a run whose process dies within this time after its end may be repeated
CLAIMED_MS = 500  # a run begins within this time after its claim, in a process that does not stand still
RETRY_MS = 1_500  # a last run that `max_instances` has refused is tried again within this time
LONGEST_WAIT_MS = 30_000  # a run waits less for the end of another one, because no run lasts this long
CHOSEN_GRACE_S = 2  # a grace of one second counts as none, see docs/apscheduler.md


def violations(history: JobWorld) -> list[str]:
    """The promises that the history broke, one line each. Each line begins with the name of the invariant."""
    troubles = Troubles(history)
    undone = history.store.undone_jobs()
    places = Places(history, troubles)
    found = [f"broken: {what}" for what in history.world.broken if not troubles.stock_breaks_off(what)]
    for number, add in sorted(history.adds.items()):
        answers = [
            history.answers[place] for place in sorted(history.answers) if history.answers[place].step.number == number
        ]
        runs = [run for run in history.runs if run.number == number]
        waits = places.waits_of(number)
        judge = _JobJudge(history, troubles, add, answers, runs, undone=number in undone, waits=waits)
        found += judge.violations()
    return found + places.violations() + leaks(history, undone)


class _JobJudge:
    """Judges one job.

    Args:
        history: the ended history.
        troubles: the faults of the history.
        add: the call that adds the job.
        answers: the answers to the producer's calls about the job, in order.
        runs: the runs of the job, in the order in which they began.
        undone: whether the server has lost a write about the job.
        waits: when the job may have waited for a place of its tenant.
    """

    def __init__(
        self,
        history: JobWorld,
        troubles: Troubles,
        add: JobStep,
        answers: list[JobAnswer],
        runs: list[JobRun],
        *,
        undone: bool,
        waits: Sequence[Span],
    ) -> None:
        self._waits = waits
        self._troubles, self._add, self._answers, self._runs, self._undone = troubles, add, answers, runs, undone
        self._server = history.store
        self._handed_out = [one for one in history.store.handed_out if one.number == add.number]
        self._lost_claims = history.store.lost_claims(add.number)
        self._at_most_once = bool(history.options["at_most_once"])
        plain = bool(history.options["plain_producer"])  # such a producer resumes a job by the store's clock
        self._clock_known = not (plain and troubles.steps_clock())
        self._periods = periods_of(answers, clock_known=self._clock_known, late=self._is_late)

    def _is_late(self, answer: JobAnswer) -> bool:
        return self._troubles.arrives_late(answer.began_ms, answer.answered_ms)

    def violations(self) -> list[str]:
        """The promises that were broken for this job, one line each."""
        found = [*self._early(), *self._conflicts()]
        if not self._undone:
            found += [*self._lost(), *self._duplicates(), *self._changed(), *self._instances()]
        return found

    def _name(self, run_ms: int) -> str:
        return f"job {self._add.number}, run time {run_ms} ms"

    def _conflicts(self) -> list[str]:
        """Check that `add` finds its id in use only if an earlier try of the same call may have added the job."""
        taken = [one for one in self._answers if one.outcome == "exists" and not one.doubts and not self._undone]
        return [f"conflict: {one.step} found its id taken, and no try before was in doubt" for one in taken]

    def _early(self) -> list[str]:
        """Check that no run begins before its scheduler's clock and the store's clock have reached its run time."""
        found = []
        for run in self._runs:
            clock_ms = min(run.wall_ms, self._troubles.store_clock_ms(run.began_ns // MS))
            if clock_ms < run.run_ms:
                found.append(f"early: {self._name(run.run_ms)}, began {run.run_ms - clock_ms} ms too soon")
        return found

    # -- lost

    def _lost(self) -> list[str]:
        """Check that each run time that must run has run to its end, unless the settings or a fault explain why not."""
        found = []
        for period in self._periods:
            for at in period.owed_times():
                runs = [run for run in self._runs if run.run_ms == at]
                if any(run.outcome != "running" for run in runs) or self._is_excused(period, at, runs):
                    continue
                what = "began and never ended" if runs else "never began"
                found.append(f"lost: {self._name(at)}, {what}")
        return found

    def _is_excused(self, period: Period, at: int, runs: list[JobRun]) -> bool:
        # a call may set a run time in the past, as a resume of a date does; nobody can claim it before the call
        claimed_by = self._claimed_by(max(at, period.answered_ms))
        coalesced = self._add.coalesce and any(run.run_ms > at for run in self._runs)
        if runs:  # the process died during the run
            moved = any(
                answer.step.action in MOVING and answer.answered_ms * MS >= runs[0].began_ns for answer in self._answers
            )
            died = all(self._troubles.death_of(run.process, run.began_ns // MS) is not None for run in runs)
            return (self._at_most_once and died) or moved or coalesced
        if claimed_by >= period.open_until or (coalesced and self._reached_by(claimed_by) >= period.next_after(at)):
            return True
        if self._is_missed(period, at):
            return True
        if self._at_most_once and any(self._died_holding(one, at) for one in self._handed_out):
            return True
        full = self._full_until(at, claimed_by)
        if full is None:
            return False
        return period.next_after(at) != FOREVER_MS or self._may_retry_too_late(period, at, full)

    def _claimed_by(self, at: int) -> int:
        """The latest time at which a scheduler must have claimed the job, if it is due at `at`, see `places`."""
        return self._troubles.claimed_by(at, self._waits)

    def _is_missed(self, period: Period, at: int) -> bool:
        """Whether a claim came after the run time's grace, and faults, a wait or a late call explain why.

        A process whose clock is ahead measures the lateness by its own clock. It also claims a job earlier.
        """
        too_late = at + self._add.grace_s * 1_000
        if self._add.grace_s < CHOSEN_GRACE_S or not any(
            one.run_ms <= at and one.clock_ms >= too_late for one in self._handed_out
        ):
            return False
        due = (at, at - self._troubles.ahead_ms)
        by_true_time, by_clock = (self._claimed_by(max(moment, period.answered_ms)) for moment in due)
        return by_true_time >= too_late or self._reached_by(by_clock) >= too_late

    def _reached_by(self, at: int) -> int:
        """The latest time that the store's clock and the clock of a scheduler may both have reached at `at`."""
        return max(at, min(at + self._troubles.ahead_ms, self._troubles.store_clock_ms(at)))

    def _died_holding(self, handed_out: HandedOut, at: int) -> bool:
        """Whether a process that had claimed this run time died before it could begin the run."""
        if not handed_out.covers(at):
            return False
        died = self._troubles.death_of(handed_out.process, handed_out.at_ms)
        if died is None:
            return False
        of_claim = [run for run in self._runs if (run.process, run.token) == (handed_out.process, handed_out.token)]
        if any(run.outcome == "running" for run in of_claim):  # several run times of a claim run one after the other
            return True
        free = max([handed_out.at_ms, *(run.ended_ns // MS for run in of_claim)])
        return died <= self._troubles.claimed_by(free) + CLAIMED_MS

    def _full_until(self, at: int, claimed_by: int) -> int | None:
        """The time until which, from the claim on, `max_instances` other runs are under way; None: fewer are."""
        others = [(self._claimed_ms(run), self._counts_until(run)) for run in self._runs if run.run_ms != at]
        lost = [each for each in self._handed_out if not each.covers(at)]
        for one in self._handed_out:
            if one.covers(at) and one.at_ms <= claimed_by:
                counted = [*others, *((each.at_ms, self._counts_unbegun_until(each)) for each in lost)]
                ends = [end for since, end in counted if since <= one.at_ms + CLAIMED_MS and end >= one.at_ms]
                if len(ends) >= self._add.instances:
                    return max(ends)
        return None

    def _counts_unbegun_until(self, handed_out: HandedOut) -> int:
        """Until when a run counts as under way whose process died between the claim and the run; -1: it does not."""
        if any((run.process, run.token) == (handed_out.process, handed_out.token) for run in self._runs):
            return -1
        died = self._troubles.death_of(handed_out.process, handed_out.at_ms)
        return -1 if died is None else self._troubles.claimed_by(died) + LEASE_MS

    def _may_retry_too_late(self, period: Period, at: int, full_until: int) -> bool:
        """Whether a last run that `max_instances` delays may be too late for its misfire grace time or its period."""
        for tried in range(at, min(full_until, at + LONGEST_WAIT_MS) + RETRY_MS, RETRY_MS // 3):
            claimed_by = self._claimed_by(tried)
            missed = self._add.grace_s >= CHOSEN_GRACE_S and claimed_by >= tried + self._add.grace_s * 1_000
            if missed or claimed_by + RETRY_MS >= period.open_until:
                return True
        return False

    def _counts_until(self, run: JobRun) -> int:
        """The time until which a run counts as under way."""
        if run.outcome != "running":
            return run.ended_ns // MS + SETTLED_MS + self._delay_of_reports(run)
        died = self._troubles.death_of(run.process, run.began_ns // MS)
        return FOREVER_MS if died is None else self._troubles.claimed_by(died) + LEASE_MS

    def _delay_of_reports(self, run: JobRun) -> int:
        """How long the report of a run's end may take, in ms."""
        ended = run.ended_ns // MS
        return self._troubles.claimed_by(ended) - ended

    # -- duplicates

    def _duplicates(self) -> list[str]:
        """Check that a run time runs once, unless a fault allows a repeat, and that each claim has a newer token."""
        found = []
        repeats = sum(
            answer.doubts + self._is_late(answer) if answer.step.action == "add" else not self._clock_known
            for answer in self._answers
            if answer.step.action in ("add", "resume")
        )
        by_time: dict[int, list[JobRun]] = {}
        for run in self._runs:
            by_time.setdefault(run.run_ms, []).append(run)
        for at, runs in by_time.items():
            unexcused = [
                run
                for place, (before, run) in enumerate(pairwise(runs), 1)
                if not self._may_come_again(before, run) and not self._wrote_late(runs[:place], run)
            ]
            if len(unexcused) > repeats + self._named_again(at, runs) + self._claims_lost(at):
                found.append(f"duplicates: {self._name(at)}, came again at {unexcused[0].began_ns // MS} ms")
            tokens = Counter(run.token for run in runs)
            lost = {one.token for one in self._lost_claims}  # the server gives the numbers of lost claims again
            if any(count > 1 and token not in lost for token, count in tokens.items()):
                found.append(f"token: {self._name(at)}, came twice under one token")
        return found

    def _claims_lost(self, at: int) -> int:
        """How many claims of this run time the server has lost. After each loss it hands the run time out again.

        The process that had the lost claim may have stored the run as an item of its own, a split item. Then the store
        hands the run time out again after the death of that process, perhaps long after the loss.
        """
        return sum(one.covers(at) for one in self._lost_claims)

    def _named_again(self, at: int, runs: list[JobRun]) -> int:
        """How many calls have scheduled this run time again, although it had run.

        A resume schedules the run times after the present time by its caller's clock. A scheduler whose clock is ahead
        may have run some of them already. Until the call takes effect, any other scheduler may have run some too.
        """
        return sum(
            period.began_ms < at <= max(period.began_ms + self._troubles.ahead_ms, period.answered_ms)
            and period.may_run(at, self._troubles.ahead_ms)
            and any(self._claimed_ms(run) <= period.answered_ms for run in runs)
            for period in self._periods[1:]
        )

    def _wrote_late(self, before: list[JobRun], run: JobRun) -> bool:
        """Whether a process that ran this occurrence before was paused for longer than its lease.

        When such a process continues, it may still store its run as an item of its own, a split item, although another
        process has claimed the occurrence. Whoever claims the split item runs the occurrence once more: see the traps
        in docs/apscheduler.md.
        """
        until = run.began_ns // MS
        return not self._at_most_once and any(
            self._troubles.stood_still(one.process, self._claimed_ms(one), until) for one in before
        )

    def _claimed_ms(self, run: JobRun) -> int:
        """When the process claimed this run. Several run times of one claim run one after the other."""
        claims = [one for one in self._handed_out if (one.process, one.token) == (run.process, run.token)]
        began = run.began_ns // MS
        return max((one.at_ms for one in claims if one.run_ms <= run.run_ms and one.at_ms <= began), default=began)

    def _lost_lease(self, before: JobRun, run: JobRun) -> bool:
        """Whether faults kept the process of `before` from the store until another claim handed out the same run."""
        claimed, until = self._claimed_ms(before), run.began_ns // MS
        for one in self._handed_out:
            ours = (one.process, one.token) == (before.process, before.token)
            if not ours and one.run_ms <= run.run_ms and claimed <= one.at_ms <= until:
                hold = self._server.last_hold(one, before.process)
                since = claimed - LEASE_MS if hold is None else hold.since_ms
                if self._troubles.loses_lease(before.process, since, one.at_ms):
                    return True
        return False

    def _may_come_again(self, before: JobRun, run: JobRun) -> bool:
        since, until = before.began_ns // MS, run.began_ns // MS
        if self._at_most_once:
            return False
        if self._troubles.stood_still(run.process, self._claimed_ms(run), until):  # such a process repeats runs
            return True
        if self._lost_lease(before, run):
            return True
        died = self._troubles.death_of(before.process, since)
        if died is None:
            return False
        ends = [one for one in self._runs if (one.process, one.token) == (before.process, before.token)]
        if any(one.outcome == "running" for one in ends):
            return True
        last = max(ends, key=lambda one: one.ended_ns)
        # a process reports an occurrence only after the last of its runs
        reported = last.ended_ns // MS + SETTLED_MS
        return died <= reported or self._troubles.claimed_by(last.ended_ns // MS) > reported + SETTLED_MS

    # -- changes

    def _changed(self) -> list[str]:
        """Check that no run time runs after the producer got the answer to a call that removed, paused or moved it."""
        found = []
        ahead_ms = self._troubles.ahead_ms
        seen: set[int] = set()
        for run in self._runs:
            if not any(period.may_run(run.run_ms, ahead_ms) for period in self._periods):
                name = "removed" if any(period.closed_by == "remove" for period in self._periods) else "changed"
                found.append(f"{name}: {self._name(run.run_ms)}, ran after a call had removed, paused or moved it")
            elif run.run_ms not in seen and self._began_after_removal(run):
                found.append(f"removed: {self._name(run.run_ms)}, began after the job was removed")
            seen.add(run.run_ms)
            for answer in self._answers:
                new = answer.step.action == "modify" and answer.outcome == "done" and run.revision < answer.step.at
                if new and not run.redelivered and run.run_ms - ahead_ms > answer.answered_ms:
                    found.append(f"changed: {self._name(run.run_ms)}, has the arguments from before a change")
        return found

    def _began_after_removal(self, run: JobRun) -> bool:
        """Whether a run began so long after a removal that a process must have claimed it after the removal."""
        began = run.began_ns // MS
        for answer in self._answers:
            if answer.step.action != "remove" or answer.outcome != "done" or answer.answered_ms >= began:
                continue
            late = began - answer.answered_ms > CLAIMED_MS and self._troubles.claimed_by(answer.answered_ms) < began
            batch = any(
                one.token == run.token and one.process == run.process and one.began_ns // MS <= answer.answered_ms
                for one in self._runs
            )
            if late and not batch:
                return True
        return False

    def _instances(self) -> list[str]:
        """Check that at most `max_instances` runs are under way at a time, unless a fault or a new job excuses more."""
        for run in self._runs:
            began = run.began_ns // MS
            others = [one for one in self._runs if one is not run and self._troubles.is_under_way(one, run.began_ns)]
            if len(others) < self._add.instances:
                continue
            since = min(map(self._claimed_ms, [*others, run])) - LEASE_MS
            # a job that is added under the id of a run under way may be claimed before the call has noted that run
            excused = (
                self._is_just_added_again(began)
                or any(since <= one.at_ms <= began for one in self._lost_claims)
                or any(
                    self._troubles.loses_lease(one.process, since, began) or self._was_written_late(one)
                    for one in [*others, run]
                )
            )
            if not excused:
                return [f"instances: {self._name(run.run_ms)}, began while {len(others)} others ran"]
        return []

    def _is_just_added_again(self, at: int) -> bool:
        return any(
            answer.step.action == "add" and answer.doubts and answer.began_ms <= at <= answer.answered_ms + CLAIMED_MS
            for answer in self._answers
        )

    def _was_written_late(self, run: JobRun) -> bool:
        """Whether `run` may come from a split item that a paused process stored too late, see `_wrote_late`."""
        before = [one for one in self._runs if one.run_ms == run.run_ms and one.began_ns < run.began_ns]
        return self._wrote_late(before, run)


class JobKind:
    """Makes random scenarios with APScheduler jobs, and simulates them. Implements the simulator's `Kind`."""

    name = "apscheduler"
    packages = ("wheel_sched", "wheel_sched_apscheduler", "apscheduler")

    def draw(self, seed: int) -> Scenario:
        """Implements `Kind.draw`."""
        return draw(seed)

    def run(self, scenario: Scenario) -> tuple[Trace, list[str], int]:
        """Implements `Kind.run`."""
        history = JobWorld(scenario)
        history.run()
        return history.world.trace, violations(history), history.world.scheduler.steps

"""The world of jobs: schedulers that share one store, and a producer that adds and changes jobs.

    producer ─► store ─► schedulers ─► job bodies

Real classes run in simulated processes: the product's scheduler and APScheduler's `BackgroundScheduler`, each with a
`RedisWheelJobStore`. Each body records its run. `checker` judges the answers that the producer got, and the runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.base import ConflictingIdError, JobLookupError
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger

from wheel_sched.errors import StoreError
from wheel_sched.simulation.calls import MS, START_NS
from wheel_sched.simulation.scenario import Fault, Scenario
from wheel_sched.simulation.store import remote_store
from wheel_sched.simulation.world import World
from wheel_sched.store.core.call import new_token
from wheel_sched_apscheduler.occurrence import current_occurrence
from wheel_sched_apscheduler.producer import Producer
from wheel_sched_apscheduler.run_times import to_ms
from wheel_sched_apscheduler.schedulers.background import WheelBackgroundScheduler
from wheel_sched_apscheduler.simulation.handed_out import JobServer
from wheel_sched_apscheduler.simulation.job_body import Current, run
from wheel_sched_apscheduler.simulation.scenario import LEASE_MS, JobStep, process_names
from wheel_sched_apscheduler.stores.redis import RedisWheelJobStore

QUIET_MS = 6_000  # longer than each lease, and than the sleep of a scheduler that missed a wake-up
END_MS = 60_000  # everything must have ended by then: see `checker`
MAX_SLEEP_S = 4.0
WORKERS = 10  # as APScheduler's default
TRIES = 30
START = datetime.fromtimestamp(START_NS // 1_000_000_000, UTC)
START_MS = START_NS // MS


@dataclass(slots=True)
class JobAnswer:
    """The answer that the producer got to one of its calls.

    Args:
        step: the call.
        began_ms: true time at which the first try began.
        answered_ms: true time of the answer; -1: the producer has no answer yet.
        outcome: "done"; "absent": there is no such job; "exists": another job has the id; "in doubt": no answer came.
        doubts: how many earlier tries of this call may have taken effect.
    """

    step: JobStep
    began_ms: int
    answered_ms: int = -1
    outcome: str = "in doubt"
    doubts: int = 0


@dataclass(slots=True)
class JobRun:
    """One call of a job's function. Times in ns are true time.

    `outcome`: "running" during the call, then "ok" or "failed"; if the process died, it stays "running". `run_ms`: the
    run time. `wall_ms`: the time that the clock of the process showed when the call began. Both are in ms since the
    history began.
    """

    number: int
    run_ms: int
    revision: int
    token: int
    redelivered: bool
    process: str
    began_ns: int
    wall_ms: int
    outcome: str = "running"
    ended_ns: int = 0


class BodyFailed(Exception):
    """The error that the function of a simulated job raises when the scenario says so."""


FAIR = {"by": "tenant", "weights": {"0": 4}}
TENANTS = 3


class _StampedFaults(list[tuple[Fault, str]]):
    """A list of the faults that have struck. It also records the time of each."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self.times_ms: list[int] = []

    def append(self, struck: tuple[Fault, str]) -> None:
        super().append(struck)
        self.times_ms.append(self._world.now_ms)


class JobWorld:
    """Runs a scenario. Keeps the answers that the producer got, and the runs of the jobs."""

    def __init__(self, scenario: Scenario) -> None:
        self.world = world = World(scenario)
        world.struck = self.struck = _StampedFaults(world)
        new_token()  # called outside of any process, so a history's first token does not depend on earlier histories
        self.options = options = scenario.options
        self.store = JobServer(world, options["shards"])
        self.steps = [step for step in scenario.sends if isinstance(step, JobStep)]
        self.steps.sort(key=lambda step: step.at)
        self.adds = {step.number: step for step in reversed(self.steps) if step.action == "add"}
        self.answers: dict[int, JobAnswer] = {}  # by the place in `steps`
        self.runs: list[JobRun] = []
        self.births_ms: dict[str, int] = {}  # when each process started, by its name
        Current.history = self
        for name in process_names(options):
            world.add_host(name, self._producer if name == "producer" else self._scheduler)

    def run(self) -> None:
        """Run the history."""
        self.world.begin()
        # a clock that is set back makes items wait longer, and runs that are put back while the clocks differ
        steps = (fault.amount for fault in self.world.scenario.faults if fault.kind == "step-clock")
        self.world.run(END_MS + sum(abs(step) for step in steps), self._ended, QUIET_MS)

    def _ended(self) -> bool:
        """Whether the history has ended: every call has its answer, no job waits, and no body runs."""
        if sum(answer.answered_ms >= 0 for answer in self.answers.values()) < len(self.steps):
            return False
        if any(item.state in ("due", "leased") for item in self.store.contents.items()):
            return False
        alive = {host.process.name for host in self.world.hosts.values() if host.process.alive}
        return not any(run.outcome == "running" and run.process in alive for run in self.runs)

    # -- processes

    def _jobstore(self) -> RedisWheelJobStore:
        options = self.options
        return RedisWheelJobStore(
            store=remote_store(self.world, self.store, options["shards"]),
            allow=[run.__module__],
            lease_s=LEASE_MS / 1_000,
            delivery="at_most_once" if options["at_most_once"] else "at_least_once",
            max_sleep_s=MAX_SLEEP_S,
            history=options["history"],
            announce_s=0,
            fair={**FAIR, "max_in_flight": most_in_flight(options)} if "fair" in options else None,
        )

    def _started(self, kind: type[BackgroundScheduler], *, paused: bool = False) -> Any:
        scheduler = kind(
            timezone=UTC, jobstores={"default": self._jobstore()}, executors={"default": ThreadPoolExecutor(WORKERS)}
        )
        scheduler.start(paused)
        return scheduler

    def _scheduler(self) -> Callable[[], object]:
        process = self.world.scheduler.process
        self.births_ms[process.name] = self.world.now_ms
        number = int(process.name.partition("-")[2].partition(".")[0])
        process.wall_offset_ns = self.options[f"skew-{number}"] * MS
        stock = number < self.options["stock"]
        scheduler = self._started(BackgroundScheduler if stock else WheelBackgroundScheduler)
        shutdown: Callable[[], object] = scheduler.shutdown
        return shutdown

    def _producer(self) -> Callable[[], object]:
        """Run a process of the producer: make all calls that have no answer yet, each at its time.

        If an earlier process of the producer died during a call, this process begins with that call.

        Returns:
            The function that shuts the process down; it does nothing.
        """
        left = [
            place
            for place in range(len(self.steps))
            if place not in self.answers or self.answers[place].answered_ms < 0
        ]
        if left:
            calls = self._plain_calls() if self.options["plain_producer"] else self._scheduler_calls()
            for place in left:
                step = self.steps[place]
                self.world.scheduler.sleep_ns(max(0, step.at * MS - self.world.scheduler.now_ns))
                self._call(place, step, calls[step.action])
            calls["close"](None)
        return lambda: None

    def _plain_calls(self) -> Mapping[str, Callable[[Any], object]]:
        """The functions that make the calls in a process without a scheduler, by action."""
        producer = Producer(self._jobstore(), timezone=UTC)
        store = producer.jobstore

        def add(step: JobStep) -> None:
            options = self._job_options(step)
            producer.add_job(run, trigger_of(step), id=id_of(step), tags=tags_of(step.number), **options)

        def reschedule(step: JobStep) -> None:
            if store.lookup_job(id_of(step)) is None:
                raise JobLookupError(id_of(step))
            options = {**self._job_options(self.adds[step.number]), "args": (step.number, step.at)}
            options["tags"] = tags_of(step.number)
            producer.add_job(run, trigger_of(step), id=id_of(step), replace_existing=True, **options)

        def modify(step: JobStep) -> None:
            job = store.lookup_job(id_of(step))
            if job is None:
                raise JobLookupError(id_of(step))
            job._modify(args=(step.number, step.at))
            store.update_job(job)

        return {
            "add": add,
            "reschedule": reschedule,
            "modify": modify,
            "pause": lambda step: store.pause(id_of(step)),
            "resume": lambda step: store.resume(id_of(step)),
            "remove": lambda step: producer.remove_job(id_of(step)),
            "close": lambda _: producer.close(),
        }

    def _scheduler_calls(self) -> Mapping[str, Callable[[Any], object]]:
        """The functions that make the calls through a paused scheduler, by action."""
        scheduler = self._started(WheelBackgroundScheduler, paused=True)
        return {
            "add": lambda step: scheduler.add_job(run, trigger_of(step), id=id_of(step), **self._job_options(step)),
            "reschedule": lambda step: scheduler.reschedule_job(id_of(step), trigger=trigger_of(step)),
            "modify": lambda step: scheduler.modify_job(id_of(step), args=(step.number, step.at)),
            "pause": lambda step: scheduler.pause_job(id_of(step)),
            "resume": lambda step: scheduler.resume_job(id_of(step)),
            "remove": lambda step: scheduler.remove_job(id_of(step)),
            "close": lambda _: scheduler.shutdown(),
        }

    def _job_options(self, step: JobStep) -> dict[str, Any]:
        return {
            "args": (step.number, 0),
            "misfire_grace_time": step.grace_s or None,
            "coalesce": step.coalesce,
            "max_instances": step.instances,
        }

    def _call(self, place: int, step: JobStep, call: Callable[[Any], object]) -> None:
        """Make a call as a careful producer does: it repeats the call until it has an answer."""
        world = self.world
        known = place in self.answers
        answer = self.answers.setdefault(place, JobAnswer(step, world.now_ms))
        answer.doubts += known  # an earlier process has died during this call
        for _ in range(TRIES):
            before = len(self.struck)
            try:
                call(step)
            except StoreError as error:
                struck = any(fault.target == "producer" for fault, _ in self.struck[before:])
                answer.doubts += struck or getattr(error, "in_doubt", False)
                world.note("producer", f"{step}: {error}")
                world.scheduler.sleep_ns(400 * MS)
                continue
            except JobLookupError:
                answer.outcome = "absent"
            except ConflictingIdError:
                answer.outcome = "exists"
            else:
                answer.outcome = "done"
            break
        answer.answered_ms = world.now_ms
        world.note("producer", f"{step}: {answer.outcome}")

    # -- job bodies

    def run_job(self, number: int, revision: int) -> None:
        """Implements `Runner.run_job`."""
        world, scheduler = self.world, self.world.scheduler
        occurrence = current_occurrence()
        if occurrence is None:
            world.broken.append(f"job {number} ran without an occurrence")
            return
        run_ms = to_ms(occurrence.run_time) - START_MS
        process = scheduler.process
        seen = JobRun(
            number,
            run_ms,
            revision,
            occurrence.token,
            occurrence.redelivered,
            process.name,
            scheduler.now_ns,
            scheduler.wall_ns() // MS - START_MS,
        )
        self.runs.append(seen)
        world.note(process.name, f"job {number}, run time {run_ms} ms, begins")
        add = self.adds[number]
        if add.lasts:
            scheduler.sleep_ns(add.lasts * MS)
        seen.ended_ns = scheduler.now_ns
        seen.outcome = "failed" if add.fails else "ok"
        world.note(process.name, f"job {number}, run time {run_ms} ms: {seen.outcome}")
        if add.fails:
            raise BodyFailed(f"job {number}")


def most_in_flight(options: Mapping[str, int]) -> int:
    """How many runs of each tenant may be in flight. 0 means any number; it is also 0 if jobs are not shared."""
    return 0 if options["at_most_once"] else options.get("fair", 0)


def tags_of(number: int) -> list[str]:
    """The tags of a job that a producer without a scheduler adds. APScheduler's `add_job` gives a job no tags."""
    return [f"tenant:{number % TENANTS}"]


def tenant_of(number: int, *, plain: bool) -> str:
    """The tenant of a job; "" without tags. `plain`: whether the producer has no scheduler."""
    return tags_of(number)[0].partition(":")[2] if plain else ""


def id_of(step: JobStep) -> str:
    """The id of the step's job."""
    return f"job{step.number}"


def trigger_of(step: JobStep) -> Any:
    """The trigger that the step gives to its job."""
    first, end = _moment(step.first_ms), _moment(step.end_ms)
    if step.trigger == "date":
        return DateTrigger(first, timezone=UTC)
    if step.trigger == "interval":
        seconds: Any = step.every / 1_000  # APScheduler also takes parts of a second
        return IntervalTrigger(seconds=seconds, start_date=first, end_date=end, timezone=UTC)
    return CronTrigger(second=f"*/{step.every // 1_000}", start_date=first, end_date=end, timezone=UTC)


def _moment(true_ms: int) -> datetime:
    return START + timedelta(milliseconds=true_ms)

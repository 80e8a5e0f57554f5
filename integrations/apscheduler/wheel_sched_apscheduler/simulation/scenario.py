"""The scenarios of simulated schedulers: the producer's calls about each job, and the faults.

A job has a date, interval or cron trigger. The producer adds the job, and may change, pause, resume or remove it.
True time is the virtual time since the history (the simulated run) began. The clock of a simulated process may differ
from it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from wheel_sched.simulation.calls import START_NS
from wheel_sched.simulation.scenario import HandIn, Scenario, Step, draw_faults

SPAN_MS = 8_000  # in this time the producer makes its calls, and faults strike
LEASE_MS = 2_000
MINUTE_S = 60
START_S = START_NS // 1_000_000_000
SERVER_FAULTS = {"store": ("outage", "step-clock", "read-only", "full", "rewind")}
CHANGES = ("modify", "reschedule", "pause", "resume", "remove")
PLACES = (1, 1, 2, 3, 100)  # how many places each tenant has; with 100 no run waits for a place
SKEWS_MS = (0, 0, 0, 40, -40, 3_000, -1_500)  # how far a process's wall clock may be ahead


@dataclass(frozen=True, slots=True)
class JobStep(HandIn):
    """One call of the producer. `number`: the number of the job. `delay`: the ms from `at` to the first run time.

    Args:
        action: "add", or one of `CHANGES`.
        trigger: for "add" and "reschedule": "date", "interval" or "cron".
        every: ms between two run times; for a cron trigger a multiple of 1,000.
        times: the largest number of run times.
        grace_s: the misfire grace time in seconds; 0 means None.
        coalesce: whether missed run times become one.
        instances: how many instances may run at a time.
    """

    action: str = "add"
    trigger: str = "date"
    every: int = 1_000
    times: int = 1
    grace_s: int = 0
    coalesce: bool = True
    instances: int = 1

    def __str__(self) -> str:
        parts = [f"{self.action} job {self.number} at {self.at} ms"]
        if self.action in ("add", "reschedule"):
            parts.append(f"{self.trigger} from {self.at + self.delay} ms")
            parts += [f"{self.times} times every {self.every} ms"] if self.trigger != "date" else []
        if self.action == "add":
            parts += [f"lasts {self.lasts} ms"] if self.lasts else []
            parts += ["fails"] if self.fails else []
            parts += [f"grace {self.grace_s} s"] if self.grace_s else []
            parts += [] if self.coalesce else ["does not coalesce"]
            parts += [f"{self.instances} instances"] if self.instances > 1 else []
        return ", ".join(parts)

    @property
    def first_ms(self) -> int:
        """The first run time, in ms of true time. A cron trigger has its first run time then or later."""
        return self.at + self.delay

    @property
    def end_ms(self) -> int:
        """The trigger's end in ms, a little after its last run time: APScheduler's intervals are not exact."""
        return self.first_ms + self.every * (self.times - 1) + 50

    def run_times(self) -> list[int]:
        """All run times of the trigger, in ms of true time."""
        if self.trigger == "date":
            return [self.first_ms]
        if self.trigger == "interval":
            return [self.first_ms + self.every * turn for turn in range(self.times)]
        return [
            second * 1_000
            for second in range(-(-self.first_ms // 1_000), self.end_ms // 1_000 + 1)
            if (START_S + second) % MINUTE_S % (self.every // 1_000) == 0
        ]


def draw(seed: int, *, jobs: int = 9, faults: int | None = None, fair: bool = False) -> Scenario:
    """Draw a scenario. One in four has few faults, so that the checker accepts few repeats.

    Args:
        seed: decides everything.
        jobs: the number of jobs, with about two run times each. Defaults to 9.
        faults: the number of faults. Defaults to 5, or in one scenario of four to 0, 1 or 2.
        fair: whether due jobs are shared between tenants, of which most have few places. Defaults to False.
    """
    rng = random.Random(f"apscheduler {seed}")
    faults = rng.choice((0, 1, 1, 2, *[5] * 12)) if faults is None else faults
    steps: list[Step] = []
    for number in range(jobs):
        steps += _steps_of_job(rng, number)
    options = {
        "schedulers": rng.choice((1, 2, 2, 2, 3)),
        "stock": rng.choice((0, 0, 0, 1, 1, 3)),  # this many of the schedulers are stock schedulers
        "shards": rng.choice((1, 1, 2)),
        "at_most_once": rng.choice((0, 0, 0, 0, 1)),
        "plain_producer": rng.choice((0, 1)),
        "history": rng.choice((0, 0, 20)),
    }
    if fair:
        options["fair"] = rng.choice(PLACES)
    for number in range(options["schedulers"]):
        options[f"skew-{number}"] = rng.choice(SKEWS_MS)
    steps += draw_faults(
        rng,
        faults,
        process_names(options),
        SERVER_FAULTS,
        calls=60,
        span_ms=SPAN_MS,
        pause_ms=(100, 1_000, 3_000, 7_000),
    )
    return Scenario(seed, "apscheduler", rng.getrandbits(32), tuple(steps), options)


def process_names(options: dict[str, int]) -> list[str]:
    """The names of the processes of a world with these options."""
    return [*(f"scheduler-{number}" for number in range(options["schedulers"])), "producer"]


def _steps_of_job(rng: random.Random, number: int) -> list[Step]:
    add = _trigger(rng, number, rng.randrange(SPAN_MS // 2), "add")
    steps: list[Step] = [add]
    at = add.at
    for action in rng.choice(((), (), (), ("any",), ("any",), ("pause", "resume"), ("any", "any"))):
        chosen = rng.choice(CHANGES) if action == "any" else action
        at += rng.randrange(200, 3_000)
        if chosen == "reschedule":
            steps.append(_trigger(rng, number, at, chosen))
        else:
            steps.append(JobStep(number, at, action=chosen))
    return steps


def _trigger(rng: random.Random, number: int, at: int, action: str) -> JobStep:
    trigger = rng.choice(("date", "date", "interval", "interval", "cron"))
    return JobStep(
        number,
        at,
        delay=rng.choice((-200, 0, 300, 700, 1_500)),
        fails=rng.choice((0, 0, 0, 1)),
        lasts=rng.choice((0, 0, 0, 5, 80, 600, 1_700, 3_000)),
        action=action,
        trigger=trigger,
        every=rng.choice((1_000, 2_000)) if trigger == "cron" else rng.choice((250, 700, 1_000, 2_000)),
        times=1 if trigger == "date" else rng.choice((2, 3, 4)),
        grace_s=rng.choice((0, 0, 1, 2, 4)),
        coalesce=rng.random() < 0.6,
        instances=rng.choice((1, 1, 2)),
    )

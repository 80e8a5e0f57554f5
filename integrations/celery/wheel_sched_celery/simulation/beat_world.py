"""The world of periodic tasks: workers that tick the entries of a schedule, and an operator who changes it at run time.

    operator ─► entries in the store ─► dispatchers in workers ─► queue ─► workers ─► function

Store, broker and workers are those of the world `celery`. The operator adds entries, gives some another interval, and
removes them all. `beat_checker` judges the runs of the function by the header with the due time.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Final

from wheel_sched.errors import NotDone, StoreError
from wheel_sched.simulation.calls import MS
from wheel_sched.simulation.scenario import Fault, HandIn, Scenario, Step, draw_faults
from wheel_sched.simulation.scheduler import running
from wheel_sched.simulation.store import remote_store
from wheel_sched_celery.beat.entries import BeatEntries
from wheel_sched_celery.simulation.celery_world import APPS, SERVER_FAULTS, TASK, CeleryWorld, processes

CATCH_UP: Final = ("all", "latest", "skip")
SPAN_MS: Final = 8_000
END_OF_FAULTS_MS: Final = SPAN_MS + 5_000
LIMIT: Final = 1_000
LIMIT_OVER_HOURS: Final = (
    40  # where the clock jumps by hours: fewer occurrences come at once, and a history stays short
)
HOURS_MS: Final = 2 * 3_600_000
AGAIN_MS: Final = 300


@dataclass(slots=True)
class EntryLife:
    """What the operator knows about an entry. Times are in ms by the store's clock.

    Args:
        name: its name.
        catch_up: its policy.
        first_ms: its first due time; None until the store has confirmed it.
        changed: whether its interval was changed.
        removed_ms: when the store had confirmed that it is removed; None before.
    """

    name: str
    catch_up: str
    first_ms: int | None = None
    changed: bool = False
    removed_ms: int | None = None


@dataclass(slots=True)
class TickCall:
    """One run of the task's function. `ended`: whether it came to its end; it did not if the process died."""

    name: str
    due_ms: int
    task_id: str
    began_ns: int
    began_wall_ms: int
    ended: bool = False


def draw(seed: int, *, entries: int = 5, faults: int | None = None) -> Scenario:
    """Draw a scenario. `delay` of an entry is its interval, `lasts` when it is removed, `kind` its policy.

    Args:
        seed: decides everything.
        entries: the number of entries. Defaults to 5.
        faults: the number of faults. Defaults to 5, or in one scenario of four to 0, 1 or 2.
    """
    rng = random.Random(f"celery-beat {seed}")
    faults = rng.choice((0, 1, 2, *[5] * 9)) if faults is None else faults
    steps: list[Step] = [
        HandIn(
            number,
            at=rng.randrange(1_500),
            delay=rng.choice((300, 400, 700, 1_000, 2_000)),
            fails=rng.choice((0, 0, 0, 1)),  # 1: its interval is changed half-way
            lasts=rng.randrange(SPAN_MS // 2, SPAN_MS),
            kind=rng.choice(("all", "all", *CATCH_UP)),
        )
        for number in range(entries)
    ]
    options = {
        "workers": rng.choice((1, 2, 2)),
        "shards": rng.choice((1, 2)),
        "visibility_ms": 0,
        "refuse": 0,
        "ahead_ms": rng.choice((0, 0, 1_500, -1_500)),
    }
    steps += draw_faults(
        rng,
        faults,
        processes(options),
        SERVER_FAULTS,
        calls=120,
        span_ms=SPAN_MS,
        pause_ms=(100, 1_000, 3_000, 7_000),
    )
    clocks = draw_clock_steps(random.Random(f"celery-beat clocks {seed}"))
    options["limit"] = LIMIT_OVER_HOURS if sum(step.amount for step in clocks) >= HOURS_MS else LIMIT
    return Scenario(seed, "celery-beat", rng.getrandbits(32), (*steps, *clocks), options)


def draw_clock_steps(rng: random.Random) -> list[Fault]:
    """Draw steps of the store's clock, in two scenarios of five: small ones as of NTP, a minute, or hours.

    A step of hours backwards is undone after some seconds: otherwise nothing would be due until the end.
    """
    at = rng.randrange(1_000, SPAN_MS - 4_000)
    again = at + rng.randrange(300, 4_000)
    later = again + rng.randrange(100, 2_000)
    drawn = rng.choice(
        (
            *[()] * 6,
            ((at, rng.randrange(1, 400)), (again, -rng.randrange(1, 400)), (later, rng.randrange(1, 400))),
            ((at, rng.choice((-60_000, 60_000))),),
            ((at, HOURS_MS),),
            ((at, -HOURS_MS), (again, HOURS_MS)),
        )
    )
    return [Fault("step-clock", "store", when, amount) for when, amount in drawn]


class BeatWorld(CeleryWorld):
    """Runs a scenario. Keeps what the operator did, and the runs of the task."""

    def __init__(self, scenario: Scenario) -> None:
        self.lives = {send.number: EntryLife(f"e{send.number}", send.kind) for send in scenario.sends}
        self.ticks: list[TickCall] = []
        self.limit: int = scenario.options["limit"]
        super().__init__(scenario)

    def _ended(self) -> bool:
        """Whether each entry is removed, and nothing waits in the store or the queues."""
        removed = all(life.removed_ms is not None for life in self.lives.values())
        return removed and not self.waiting() and not self.broker.unsettled()

    # -- the operator

    def _producer(self) -> Callable[[], object]:
        """Add, change and remove each entry at its time. An operator that replaces a dead one does what is missing."""
        app = APPS["producer"]
        wheel = self._wheel(app)
        entries = BeatEntries(wheel, remote_store(self.world, self.store, self.store.shards))
        steps: list[tuple[int, int, Callable[[BeatEntries, HandIn, EntryLife], None]]] = []
        for send in self.sends.values():
            steps.append((send.at, send.number, self._add))
            if send.fails:
                steps.append(((send.at + send.lasts) // 2, send.number, self._change))
            steps.append((send.lasts, send.number, self._remove))
        scheduler = self.world.scheduler
        for at, number, step in sorted(steps, key=lambda one: one[:2]):
            scheduler.sleep_ns(max(0, at * MS - scheduler.now_ns))
            self._insist(partial(step, entries, self.sends[number], self.lives[number]))
        scheduler.sleep_ns(max(0, END_OF_FAULTS_MS * MS - scheduler.now_ns))
        for life in self.lives.values():  # a server that lost writes has some of them again
            self._insist(partial(entries.remove, life.name))
        return lambda: None

    def _insist(self, work: Callable[[], object]) -> None:
        """Repeat a change until the store has confirmed it."""
        while True:
            try:
                work()
                return
            except StoreError as error:
                self.world.note("operator", repr(error))
                self.world.scheduler.sleep_ns(AGAIN_MS * MS)

    def _add(self, entries: BeatEntries, send: HandIn, life: EntryLife) -> None:
        if life.removed_ms is not None or life.first_ms is not None:
            return
        made = entries.make(life.name, TASK, send.delay / 1000, catch_up=life.catch_up, catch_up_limit=self.limit)
        try:
            stored = entries.add(replace(made, args=(send.number,)))
        except NotDone:  # the call before was carried out, and its answer was lost; it may have ticked since
            life.first_ms = -1
            return
        life.first_ms = -1 if stored.entry is None or stored.entry.runs else stored.entry.due_ms
        self.world.note("operator", f"{life.name} is added")

    def _change(self, entries: BeatEntries, send: HandIn, life: EntryLife) -> None:
        if life.removed_ms is not None:
            return
        life.changed = True
        made = entries.make(life.name, TASK, 2 * send.delay / 1000, catch_up=life.catch_up, catch_up_limit=self.limit)
        try:
            entries.replace(replace(made, args=(send.number,)))
        except NotDone as error:  # a restart of the server has lost it
            self.world.note("operator", str(error))

    def _remove(self, entries: BeatEntries, send: HandIn, life: EntryLife) -> None:
        if life.removed_ms is None:
            entries.remove(life.name)
            life.removed_ms = self.store.wall_ms()
            self.world.note("operator", f"{life.name} is removed")

    # -- the task's function

    def _work(self, app: Any, request: dict[str, Any]) -> None:
        """Overrides `CeleryWorld._work`: record the occurrence."""
        due_ms = round(datetime.fromisoformat(request["wheel-sched-due"]).timestamp() * 1_000)
        scheduler = self.world.scheduler
        call = TickCall(request["periodic_task_name"], due_ms, request["id"], scheduler.now_ns, self.store.wall_ms())
        self.ticks.append(call)
        self.world.note(running.scheduler.process.name, f"{call.name}, due at {due_ms}")
        call.ended = True

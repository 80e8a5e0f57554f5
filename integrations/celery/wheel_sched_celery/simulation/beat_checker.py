"""Judges a history of periodic tasks by the promises of docs/celery-beat.md.

The checker sees what the operator did, the runs of the task with their due times, and what is left in the servers.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from wheel_sched.simulation.calls import MS
from wheel_sched.simulation.scenario import Scenario
from wheel_sched.simulation.trace import Trace
from wheel_sched_celery.simulation.beat_world import BeatWorld, EntryLife, TickCall, draw
from wheel_sched_celery.simulation.checker import CeleryKind, repeats_allowed

FORGETTING_STEP_MS = 60_000  # a step of the clock after which the store may have forgotten a call


def violations(run: BeatWorld) -> list[str]:
    """The promises that the history broke, one line each. Each line begins with the name of the invariant."""
    found = [f"broken: {what}" for what in run.world.broken]
    ticks: dict[str, list[TickCall]] = {}
    for tick in run.ticks:
        ticks.setdefault(tick.name, []).append(tick)
    found += _ids(run)
    found += _early(run)
    found += _repeated(run)
    for life in run.lives.values():
        found += _missed(run, life, ticks.get(life.name, []))
        found += _after_removal(run, life, ticks.get(life.name, []))
    left = Counter(item.state for item in run.waiting())
    found += [f"leak: {count} items are {state}" for state, count in sorted(left.items())]
    return found + [f"leak: {queue} has {n} messages" for queue, n in sorted(run.broker.unsettled().items())]


def _loses(run: BeatWorld) -> bool:
    """Whether a server lost writes at a restart."""
    return any(fault.kind == "rewind" for fault, _ in run.world.struck)


def _ids(run: BeatWorld) -> list[str]:
    """Check that an occurrence has one id, whatever process sends it and however often."""
    ids: dict[tuple[str, int], set[str]] = {}
    for tick in run.ticks:
        ids.setdefault((tick.name, tick.due_ms), set()).add(tick.task_id)
    return [f"ids: {name}, due at {due_ms}, has {len(one)} ids" for (name, due_ms), one in ids.items() if len(one) > 1]


def _early(run: BeatWorld) -> list[str]:
    """Check that no run begins before the store's clock has shown its due time. The clock may have gone back since."""

    def latest_ms(one: TickCall) -> int:
        shown = [before_ms for at_ns, before_ms, _ in run.store.steps if at_ns <= one.began_ns]
        return max(one.began_wall_ms, *shown) if shown else one.began_wall_ms

    return [
        f"early: {one.name}, at {one.began_ns // MS} ms, {one.due_ms - latest_ms(one)} ms before it was due"
        for one in run.ticks
        if latest_ms(one) < one.due_ms
    ]


def _repeated(run: BeatWorld) -> list[str]:
    """Check that each occurrence runs once, except for the repeats of messages that a fault allows.

    After a rewind the store sends again whatever it sent within the time that it has lost. After a step of the clock
    this may be the greatest number of occurrences of each entry.
    """
    runs = Counter((tick.name, tick.due_ms) for tick in run.ticks)
    again = sum(count - 1 for count in runs.values())
    allowed = 0
    for fault, call in run.world.struck:
        allowed += repeats_allowed(fault, call, outlasts_visibility=False)
        if fault.kind == "rewind" and not fault.call:
            allowed += sum(fault.at - fault.amount <= tick.began_ns // MS <= fault.at for tick in run.ticks)
    if again > allowed:
        first = next(one for one, count in runs.items() if count > 1)
        return [f"repeated: {again} runs came again, {allowed} may; first: {first[0]}, due at {first[1]}"]
    return []


def _missed(run: BeatWorld, life: EntryLife, ticks: list[TickCall]) -> list[str]:
    """Check that with catch-up `all` no occurrence is missing from the first due time to the last one that ran.

    Does not check an entry that was changed, nor a history in which a server lost writes.

    An occurrence that was due when the entry was removed, and that was not sent yet, is never sent. So the check does
    not look at occurrences after the last run. If the clock jumps over more occurrences than the entry's limit, only
    the last ones are sent.
    """
    if life.catch_up != "all" or life.changed or _loses(run) or not ticks:
        return []
    every_ms = next(send.delay for send in run.sends.values() if f"e{send.number}" == life.name)
    dues = sorted({tick.due_ms for tick in ticks})
    if life.first_ms is not None and life.first_ms > 0:
        dues.insert(0, life.first_ms - every_ms)
    far = [step for step in run.store.steps if step[2] - step[1] > run.limit * every_ms]
    gaps = [
        (one, other)
        for one, other in pairwise(dues)
        if other - one != every_ms and not any(one <= after and before <= other <= after for _, before, after in far)
    ]
    return [f"missed: {life.name} has nothing between {one} and {other}" for one, other in gaps[:1]]


def _adds_again(run: BeatWorld) -> bool:
    """Whether a copy of the call that added an entry may arrive when the store has forgotten the call.

    The store knows a removed id for a bounded time of its own clock. A clock that is set forward ends this time, and
    then a copy that the network has kept for seconds adds the entry again.
    """
    forgets = any(after - before >= FORGETTING_STEP_MS for _, before, after in run.store.steps)
    return forgets and any(fault.kind == "late-request" for fault, _ in run.world.struck)


def _after_removal(run: BeatWorld, life: EntryLife, ticks: list[TickCall]) -> list[str]:
    """Check that no occurrence runs that was due after the store had confirmed the removal."""
    if life.removed_ms is None or _loses(run) or _adds_again(run):
        return []
    back_ms = 2 * run.store.steps_back_ms
    late = [tick for tick in ticks if tick.due_ms > life.removed_ms + back_ms]
    return [f"removed: {life.name} was removed at {life.removed_ms}, and ran for {late[0].due_ms}"] if late else []


class BeatKind(CeleryKind):
    """Makes random scenarios with periodic tasks, and simulates them. Implements the simulator's `Kind`."""

    name = "celery-beat"

    def draw(self, seed: int) -> Scenario:
        """Implements `Kind.draw`."""
        return draw(seed)

    def run(self, scenario: Scenario) -> tuple[Trace, list[str], int]:
        """Implements `Kind.run`."""
        history = BeatWorld(scenario)
        history.run()
        return history.world.trace, violations(history), history.world.scheduler.steps

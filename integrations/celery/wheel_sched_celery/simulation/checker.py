"""Judges a history, a simulated run of workers, by the promises of docs/guarantees.md and docs/celery.md.

The checker sees the results that the producer got, the runs of the tasks, and what is left in the servers. It does
not read any counter of the product.
"""

from __future__ import annotations

import re
from collections import Counter

from wheel_sched.simulation.calls import MS
from wheel_sched.simulation.scenario import CALL_FAULTS, Fault, Scenario
from wheel_sched.simulation.trace import Trace
from wheel_sched_celery.settings import HORIZON_MS
from wheel_sched_celery.simulation.celery_world import COUNTDOWN_MS, LEASE_MS, MAX_RETRIES, BodyCall, CeleryWorld, draw

AT_ONCE = 40  # messages that one worker holds at most: what it has fetched, and what it publishes
A_MESSAGE = 1 + MAX_RETRIES  # runs of one message that was sent once more
TAKEOVER_CALLS = ("store schedule", "store get", "store change", "store window")


def violations(run: CeleryWorld) -> list[str]:
    """The promises that the history broke, one line each. Each line begins with the name of the invariant."""
    found = [f"broken: {what}" for what in run.world.broken]
    calls: dict[int, list[BodyCall]] = {}
    for call in run.calls:
        calls.setdefault(call.number, []).append(call)
    found += _lost(run, calls)
    found += _early(run)
    found += _caps(run, calls)
    found += _duplicates(run, calls)
    found += _revoked(run, calls)
    found += _leaks(run)
    return found


def _lost(run: CeleryWorld, calls: dict[int, list[BodyCall]]) -> list[str]:
    """Check that each task that was sent succeeds, fails for good, or is revoked."""
    found = []
    undone = {int(number) for call in run.store.lost_calls for number in re.findall(r"\bt(\d+)", repr(call))}
    for number, result in sorted(run.results.items()):
        ended = any(one.outcome in ("ok", "failed") for one in calls.get(number, ()))
        if result.outcome == "sent" and not ended and number not in run.revoking and number not in undone:
            found.append(f"lost: task {number}, sent at {result.at_ns // MS} ms, has neither succeeded nor failed")
    return found


def _early(run: CeleryWorld) -> list[str]:
    """Check that no run of a task's function begins before the task's ETA, by the store's clock.

    A worker that could not reach the store uses its own clock, as Celery does. So the check allows for the error of
    that clock, for what it has gained since the history began because it runs faster, and for 1 ms of rounding.
    """
    unreached = any(fault.target == "store" or call.startswith("store") for fault, call in run.world.struck)
    ahead_ms, faster_ppm = max(0, run.options["ahead_ms"]), max(0, run.world.drift_ppm)
    found = []
    for one in run.calls:
        gained_ms = one.began_ns // MS * faster_ppm // 1_000_000
        back_ms = 2 * run.store.steps_back_ms + (ahead_ms + gained_ms + 1 if unreached else 0)
        if one.began_wall_ms + back_ms < one.eta_ms:
            found.append(
                f"early: task {one.number}, attempt {one.attempt}, began at {one.began_ns // MS} ms, "
                f"{one.eta_ms - one.began_wall_ms} ms before its ETA"
            )
    return found


def _caps(run: CeleryWorld, calls: dict[int, list[BodyCall]]) -> list[str]:
    """Check that the attempt before each retry has run, and that no task has more retries than it allows."""
    found = []
    for number, attempts in sorted(calls.items()):
        for one in attempts:
            if one.attempt > MAX_RETRIES:
                found.append(f"caps: task {number} came as attempt {one.attempt}, and {MAX_RETRIES} are allowed")
            if one.attempt and not any(other.attempt == one.attempt - 1 for other in attempts):
                found.append(f"caps: task {number} came as attempt {one.attempt} without the one before it")
    return found


def _outlasts_visibility(run: CeleryWorld) -> bool:
    """Whether a task may wait longer in a worker than the broker waits for its acknowledgement.

    While the store is away, a task waits in a worker until its ETA by the store's clock. If that clock is set back, the
    task waits longer by the size of this step. If the visibility timeout ends first, the broker delivers the task
    again, as with stock Celery (docs/celery.md).
    """
    visibility_ms = run.options["visibility_ms"]
    longest_ms = max([COUNTDOWN_MS, *(send.delay for send in run.sends.values())])
    return bool(visibility_ms) and longest_ms + run.store.steps_back_ms >= visibility_ms


def repeats_allowed(fault: Fault, call: str, *, outlasts_visibility: bool) -> int:
    """How many repeated runs a fault excuses. 0: the product must prevent every repeat.

    Most repeats have one of three causes: a worker dies or is paused while it has messages; a reply of the broker or
    its connection is lost; a server loses writes. These excuse no repeat: the store's reply to another call than
    `schedule` is lost; a call reaches the store twice; a worker is shut down; the store is away for a moment.
    """
    long = fault.amount >= LEASE_MS // 2
    by_producer = fault.target == "producer"
    match fault.kind:
        case "kill-before" | "kill-after" | "kill":
            return A_MESSAGE if by_producer else AT_ONCE  # a new producer repeats the call that the old one died in
        case "rewind" | "redeliver":
            return AT_ONCE
        case "outage":
            return AT_ONCE if long or outlasts_visibility or fault.target == "broker" else 0
        case "read-only" | "full":
            return AT_ONCE if long or outlasts_visibility else 0
        case "pause":
            return AT_ONCE if long and not by_producer else 0
        case "step-clock":
            return AT_ONCE if fault.amount > 0 else 0
        case "late-reply":
            # when a takeover waits too long for the store, the worker keeps the task and removes the item later
            slow = fault.amount >= 200 and call.startswith(TAKEOVER_CALLS)
            return AT_ONCE if (long or slow) and not by_producer else 0
        case "late-request" if call == "store schedule":
            return A_MESSAGE if by_producer else AT_ONCE  # the request may arrive after its item has left the store
        case "lose-reply" if call == "store schedule":
            # the task is held, and the producer sends it like stock Celery, or the worker keeps it until it asks again
            return A_MESSAGE if by_producer else AT_ONCE
        case "lose-request" | "lose-reply" | "repeat-request" | "late-request":
            if not call.startswith("broker") or call == "broker broadcast":
                return 0
            return A_MESSAGE if by_producer else AT_ONCE
        case _:
            return 0


def _duplicates(run: CeleryWorld, calls: dict[int, list[BodyCall]]) -> list[str]:
    """Check that each attempt runs once, except for the repeats that a fault allows."""
    again: list[str] = []
    always_held = not any(fault.target in ("store", "producer") for fault, _ in run.world.struck)
    for number, attempts in sorted(calls.items()):
        send = run.sends[number]
        # the same message sent again is one task only while the first one is held
        copies = 2 if send.kind == "twice" and (send.delay <= HORIZON_MS or not always_held) else 1
        seen: Counter[int] = Counter()
        for one in attempts:
            seen[one.attempt] += 1
            if seen[one.attempt] > copies:
                again.append(f"task {number}, attempt {one.attempt}, at {one.began_ns // MS} ms")
    waits_long = _outlasts_visibility(run)
    allowed = sum(repeats_allowed(fault, call, outlasts_visibility=waits_long) for fault, call in run.world.struck)
    if len(again) > allowed:
        return [f"duplicates: {len(again)} runs came again, {allowed} may; first: {again[0]}"]
    return []


def _revoked(run: CeleryWorld, calls: dict[int, list[BodyCall]]) -> list[str]:
    """Check that no task runs after it was revoked, and that no task runs whose send was refused.

    A send is refused if the error of its call proves that the task was not sent. Without faults, the check covers all
    revoked tasks, and no revoked task may stay in the store. With faults, the check covers a revoked task only if the
    task was held and each fault struck later than the revoke. It covers no revoked task if a fault struck a call (see
    `CALL_FAULTS`), or if the store lost writes at a restart (a "rewind").
    """
    found = [
        f"refused: task {number} was refused, and ran"
        for number, result in sorted(run.results.items())
        if result.outcome == "refused" and number in calls
    ]
    for number, revoked_ns in sorted(run.revoked.items()):
        done_ns = revoked_ns + 500 * MS
        is_held = run.sends[number].delay > HORIZON_MS  # else a worker has it, and forgets the revoke when it restarts
        undisturbed = not run.world.struck or (
            is_held
            and all(
                fault.kind not in CALL_FAULTS and fault.kind != "rewind" and fault.at * MS > done_ns
                for fault, _ in run.world.struck
            )
        )
        late = [one for one in calls.get(number, ()) if one.began_ns > done_ns]
        if undisturbed and late:
            found.append(f"revoked: task {number} ran at {late[0].began_ns // MS} ms, revoked at {revoked_ns // MS} ms")
    if run.parked() and not run.world.struck:
        found.append(f"revoked: {len(run.parked())} revoked tasks stay in the store")
    return found


def _leaks(run: CeleryWorld) -> list[str]:
    """Check that at the end no item waits or is leased, and that every message is acknowledged."""
    left = Counter(item.state for item in run.waiting())
    found = [f"leak: {count} items are {state}" for state, count in sorted(left.items())]
    return found + [f"leak: {queue} has {n} messages" for queue, n in sorted(run.broker.unsettled().items())]


class CeleryKind:
    """Makes random scenarios with Celery tasks, and simulates them. Implements the simulator's `Kind`."""

    name = "celery"
    # the modules of kombu and Celery on the path of a task that read a clock or sleep
    packages = (
        "wheel_sched",
        "wheel_sched_celery",
        "kombu.asynchronous.timer",
        "kombu.transport.virtual.base",
        "kombu.utils.functional",
        "celery.worker.request",
    )

    def draw(self, seed: int) -> Scenario:
        """Implements `Kind.draw`."""
        return draw(seed)

    def run(self, scenario: Scenario) -> tuple[Trace, list[str], int]:
        """Implements `Kind.run`."""
        history = CeleryWorld(scenario)
        history.run()
        return history.world.trace, violations(history), history.world.scheduler.steps

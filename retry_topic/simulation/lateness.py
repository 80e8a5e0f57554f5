"""Liveness with a bound: when faults have stopped, everything due goes out in time.

The bound is a sum of what the configuration lets a message wait for at most, after the last fault has ended:

- a process that died is started again
- a lease of a claim or of a shard's owner runs out, and so does the hold of a dead member at the broker
- a marker was lost, and the dispatcher finds the item by its sweep
- a backoff has grown while a server was away: of the store's and the broker's callers at most 5 s, and of an item at
  most as long as the faults themselves lasted, because it doubles
- messages that came before it are handled first, by the processes that there are
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from retry_topic.simulation.drawing import DELAY_MS, IDLE_MS, LEASE_MS, SWEEP_MS
from retry_topic.simulation.retry_world import HandlerCall, RetryWorld
from wheel_sched.simulation.calls import MS

AGAIN_MS = 700  # as `World.add_host`
AWAY_MS = 5_000  # the longest backoff of a process that finds the store or the broker away
STEP_MS = 2_000  # for the calls themselves: some hundred round trips


def late_attempts(run: RetryWorld, calls: Mapping[int, Sequence[HandlerCall]]) -> list[str]:
    """The attempts that came later than the bound allows."""
    quiet_ms = quiet_from_ms(run)
    bound_ms = bound(run)
    found = []
    for number, attempts in sorted(calls.items()):
        for one, due_ms in zip(attempts, due_times(run, number, attempts), strict=True):
            late_ms = one.began_ns // MS - max(due_ms, quiet_ms)
            if late_ms > bound_ms:
                found.append(
                    f"late: message {number}, attempt {one.attempt}, came {late_ms} ms after it was due and the faults "
                    f"were over, and {bound_ms} ms are the bound"
                )
    return found


def due_times(run: RetryWorld, number: int, attempts: Sequence[HandlerCall]) -> list[int]:
    """When each attempt of a message was due, in true time: after the send, or after the end of the call before it."""
    told, send = run.told.get(number), run.sends[number]
    found: list[int] = []
    for index, _ in enumerate(attempts):
        if index == 0:
            sent_ms = 0 if told is None else told.at_ns // MS
            found.append(sent_ms + send.delay)
        else:
            ended_ms = max(max(one.ended_ns, one.began_ns) for one in attempts[:index]) // MS
            found.append(ended_ms + DELAY_MS)
    return found


def quiet_from_ms(run: RetryWorld) -> int:
    """When the last fault was over, in true time; a fault of a call is over when the process's calls have passed it."""
    over = [fault.at + fault.amount for fault, call in run.world.struck if not call and fault.amount >= 0]
    return max([run.world.last_fault_ms, *over], default=0)


def bound(run: RetryWorld) -> int:
    """The bound in ms, see the module."""
    options, faults = run.world.scenario.options, [fault for fault, _ in run.world.struck]
    amounts = [fault.amount for fault in faults if fault.kind != "step-clock"]
    back_ms = run.store.steps_back_ms  # items of a clock that went back wait for it
    work_ms = sum(send.lasts * (1 + send.fails) for send in run.sends.values()) // options["consumers"]
    deaths_ms = run.fatal * (AGAIN_MS + IDLE_MS) if run.fatal else 0
    leases_ms = LEASE_MS + 2 * IDLE_MS
    return AGAIN_MS + leases_ms + SWEEP_MS + AWAY_MS + sum(amounts) + back_ms + work_ms + deaths_ms + STEP_MS

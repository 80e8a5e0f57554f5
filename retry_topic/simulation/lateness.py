"""Checks that each due message is released in time once the faults have stopped.

After the last fault has ended, the configuration limits how late a message can come. This bound is the sum of the
times of these events:

- a process that died starts again
- the lease of a claim or of a shard's owner expires, and the broker expels a dead member
- the dispatcher's sweep finds an item whose marker was lost
- a backoff that grew during an outage ends. Callers of the store and of the broker wait at most 5 s. The backoff of an
  item doubles, so it is at most as long as the faults were
- a process whose calls are lost one after the other waits after each of them; after some, for 5 s
- the consumers handle earlier messages
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from retry_topic.simulation.drawing import DELAY_MS, IDLE_MS, LEASE_MS, SWEEP_MS
from retry_topic.simulation.retry_world import HandlerCall, RetryWorld
from wheel_sched.simulation.calls import MS

AGAIN_MS = 700  # the default of `World.add_host`
AWAY_MS = 5_000  # the longest backoff of a process that cannot reach the store or the broker
GROWS = 5  # after so many lost calls in a row, the backoff is the longest one
STEP_MS = 2_000  # for the calls themselves: hundreds of round trips


def late_attempts(run: RetryWorld, calls: Mapping[int, Sequence[HandlerCall]]) -> list[str]:
    """Describes each attempt that came later than the bound allows."""
    quiet_ms = quiet_from_ms(run)
    bound_ms = bound(run)
    found = []
    for number, attempts in sorted(calls.items()):
        for one, due_ms in zip(attempts, due_times(run, number, attempts), strict=True):
            late_ms = one.began_ns // MS - max(due_ms, quiet_ms)
            if late_ms > bound_ms:
                found.append(
                    f"late: message {number}, attempt {one.attempt}, came {late_ms} ms after its due time and the last "
                    f"fault; the bound is {bound_ms} ms"
                )
    return found


def due_times(run: RetryWorld, number: int, attempts: Sequence[HandlerCall]) -> list[int]:
    """When each attempt of a message was due, in ms of true time.

    The first attempt is due at the message's delay after the send. A later attempt is due `DELAY_MS` after all attempts
    before it have ended.
    """
    result, send = run.results.get(number), run.sends[number]
    found: list[int] = []
    for index, _ in enumerate(attempts):
        if index == 0:
            sent_ms = 0 if result is None else result.at_ns // MS
            found.append(sent_ms + send.delay)
        else:
            ended_ms = max(max(one.ended_ns, one.began_ns) for one in attempts[:index]) // MS
            found.append(ended_ms + DELAY_MS)
    return found


def quiet_from_ms(run: RetryWorld) -> int:
    """When the last fault of a process, clock or server ended, in ms of true time. Faults of single calls do not count:
    `bound` contains their lengths."""
    over = [fault.at + fault.amount for fault, call in run.world.struck if not call and fault.amount >= 0]
    return max(over, default=0)


def bound(run: RetryWorld) -> int:
    """The longest time in ms that an attempt may be late; the module's docstring lists its parts."""
    options, faults = run.world.scenario.options, [fault for fault, _ in run.world.struck]
    amounts = [fault.amount for fault in faults if fault.kind != "step-clock"]
    back_ms = run.store.steps_back_ms  # items wait until a clock that went back has caught up
    work_ms = sum(send.lasts * (1 + send.fails) for send in run.sends.values()) // options["consumers"]
    deaths_ms = run.fatal * (AGAIN_MS + IDLE_MS) if run.fatal else 0
    leases_ms = LEASE_MS + 2 * IDLE_MS
    lost = Counter(fault.target for fault in faults if fault.kind in ("lose-request", "lose-reply"))
    away_ms = AWAY_MS * max(1, *(count - GROWS for count in lost.values())) if lost else AWAY_MS
    return AGAIN_MS + leases_ms + SWEEP_MS + away_ms + sum(amounts) + back_ms + work_ms + deaths_ms + STEP_MS

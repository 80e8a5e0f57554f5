"""Draws faults for a history (a simulated run) from a few kinds that its seed chooses, and aims them at named calls.

If every kind of fault may strike, a history seldom shows the effect of one kind, because another fault hides or excuses
the effect. So the seed chooses some kinds, some processes and some calls, and all faults are drawn from these.
Source: Groce, Zhang, Eide, Chen, Regehr: Swarm Testing, ISSTA 2012.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TypeVar

from wheel_sched.simulation.scenario import CALL_FAULTS, LIFE, Fault

T = TypeVar("T")

SHARES = (0.1, 0.2, 0.4, 1.0)
BURST = 4  # a burst makes this many calls in a row fail; a client of the store gives a call up after three failures
STEPS_MS = (-60_000, -7_000, -3_000, -500, 500, 3_000, 7_000, 60_000)


def some(rng: random.Random, choices: Sequence[T]) -> list[T]:
    """Return a random part of `choices`, at least one of them. How large the part is, is random too."""
    share = rng.choice(SHARES)
    return [one for one in choices if rng.random() < share] or [rng.choice(choices)]


def draw_swarm(
    rng: random.Random,
    count: int,
    processes: Sequence[str],
    servers: Mapping[str, Sequence[str]],
    aims: Mapping[str, Sequence[str]],
    *,
    calls: int,
    span_ms: int,
    pause_ms: Sequence[int],
) -> list[Fault]:
    """Draw faults at random. A burst is one fault for several calls in a row, so there may be more than `count` faults.

    Args:
        rng: the random generator of the scenario.
        count: how many faults or bursts.
        processes: the names of the processes that faults may hit. The part before the last "-" is the process's role.
        servers: for each server, the `SERVER_FAULTS` that may hit it.
        aims: the calls that each role makes, as the trace shows them, such as "store settle".
        calls: a fault that is not aimed at a named call hits one of the first `calls` calls of a process.
        span_ms: faults that are not faults of calls strike within this time from the start.
        pause_ms: the possible lengths of pauses. Some are longer than every lease.
    """
    on_servers = [(kind, server) for server, kinds in servers.items() for kind in kinds]
    chosen = some(rng, [*((kind, "") for kind in CALL_FAULTS), *on_servers, *((kind, "") for kind in LIFE)])
    targets = some(rng, processes)
    named = {role: some(rng, names) for role, names in aims.items()}
    aimed, bursts = rng.choice((0.0, 0.5, 1.0)), rng.choice((0.0, 0.0, 0.5, 1.0))
    first_ms, span_ms = rng.choice(((0, span_ms), (rng.randrange(span_ms), 1_500)))
    found: list[Fault] = []
    for _ in range(count):
        kind, server = rng.choice(chosen)
        at_ms = first_ms + rng.randrange(span_ms)
        if server:
            amount = rng.choice(STEPS_MS if kind == "step-clock" else (100, 500, 1_000, 3_000))
            names = [name for known in named.values() for name in known if name.startswith(server)]
            if names and rng.random() < aimed:
                found.append(Fault(kind, server, rng.randrange(rng.choice((2, 6, 20))), amount, rng.choice(names)))
            else:
                found.append(Fault(kind, server, at_ms, amount))
            continue
        target = rng.choice(targets)
        if kind in LIFE:
            found.append(Fault(kind, target, at_ms))
            continue
        names = named.get(target.rpartition("-")[0] or target, [])
        if names and rng.random() < aimed:
            call, at = rng.choice(names), rng.randrange(rng.choice((2, 6, 20)))
        else:  # some faults aim at the first calls of a process: starting, joining, reading the state
            call, at = "", rng.randrange(12) if rng.random() < 0.3 else rng.randrange(calls)
        amount = rng.choice(pause_ms) if kind == "pause" else 0
        if kind.startswith("late-"):
            amount = rng.choice((20, 200, 2_000, 5_000))
        lost = kind in ("lose-request", "lose-reply")
        length = BURST if lost and rng.random() < bursts else 1
        found += [Fault(kind, target, at + place, amount, call) for place in range(length)]
    return found

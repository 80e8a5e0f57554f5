"""A scenario: a list of steps, drawn from a seed, that says what happens to a simulated system from outside.

A step is a value. It says what happens, to which process or server, when and how much. A program can print the list of
steps, shorten it and run it again. The list does not say how the threads interleave: that follows from
`Scenario.order`, the seed of the scheduler.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

CALL_FAULTS = {
    "lose-request": "a call does not reach its server",
    "lose-reply": "a server performs a call, and its reply is lost",
    "late-reply": "the reply of a call comes late",
    "repeat-request": "a server gets a call twice",
    "late-request": "a call reaches its server after the caller has given it up",
    "kill-before": "a process dies just before a server performs its call",
    "kill-after": "a process dies after a server performed its call, and before it reads the reply",
    "pause": "a process stands still during a call, and goes on later",
}
SERVER_FAULTS = {
    "outage": "a server answers no call for a while",
    "step-clock": "the clock of a server jumps",
    "read-only": "the store refuses writes for a while",
    "full": "the store has no memory for writes for a while",
    "rewind": "the store restarts and has lost its last writes",
    "failover": "a replica takes over that lags by a time, and the writes of this time are lost",
    "loading": "the store restarts with all its data, and loads it for a while",
    "flush-scripts": "the store forgets its functions and scripts; a store in memory has none",
    "redeliver": "the broker hands out unsettled deliveries again at once",
    "expel": "a group expels a member that looks dead",
    "fence": "the broker fences all producers, as after a transaction that has timed out",
    "late-commit": "a transaction is done after its caller has given it up",
    "untold-commit": "a transaction is done, and its caller gets no reply",
    "late-produce": "published messages arrive after their producer has given them up",
    "slow-fetch": "a broker hands out one record at a time for a while",
    "recreate": "a topic is deleted and made anew",
}
FORGETTING = frozenset({"rewind", "failover"})  # faults by which the store loses writes
LIFE = {
    "kill": "a process dies",
    "stop": "a process is stopped in order",
}
SCALING = {
    "start": "one more process of this kind runs for a while, and is stopped in order",
}
CLOCKS = {
    "drift": "from now on the clock of a server or of a process runs faster or slower",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: what goes wrong, when, and to which process or server.

    Args:
        kind: a key of `CALL_FAULTS`, `SERVER_FAULTS`, `LIFE`, `SCALING` or `CLOCKS`.
        target: the name of a process or of a server.
        at: for a call fault, the number of the process's call, counted from 0. For another fault with `call`, the
            number of the server's call after which the fault strikes. Otherwise virtual time in ms from the start.
        amount: a duration in ms; for "step-clock" the signed step in ms; for "drift" how much faster the clock runs, in
            millionths. Defaults to 0.
        call: `at` counts only the calls of this name, such as "store settle". Defaults to "": all calls.
    """

    kind: str
    target: str
    at: int
    amount: int = 0
    call: str = ""

    def __str__(self) -> str:
        where = f"at call {self.at}" if self.kind in CALL_FAULTS or self.call else f"at {self.at} ms"
        where += f" of {self.call}" if self.call else ""
        unit = "ppm" if self.kind in CLOCKS else "ms"
        amount = f", {self.amount} {unit}" if self.amount else ""
        return f"{self.kind} {self.target} {where}{amount}"


@dataclass(frozen=True, slots=True)
class HandIn:
    """A message, task or job that a producer hands in.

    Args:
        number: its number in the scenario.
        at: when the producer hands it in, in ms of virtual time from the start.
        delay: how long it waits before the first attempt, in ms; 0: at once.
        fails: how many attempts fail before one succeeds.
        lasts: how long an attempt takes, in ms.
        kind: "plain", or a kind that is hard to handle, such as "malformed"; each world has kinds of its own.
        key: the ordering key; "" = none.
    """

    number: int
    at: int
    delay: int = 0
    fails: int = 0
    lasts: int = 0
    kind: str = "plain"
    key: str = ""

    def __str__(self) -> str:
        parts = [f"send {self.number} at {self.at} ms"]
        parts += [f"delay {self.delay} ms"] if self.delay else []
        parts += [f"fails {self.fails} times"] if self.fails else []
        parts += [f"lasts {self.lasts} ms"] if self.lasts else []
        parts += [f"key {self.key}"] if self.key else []
        parts += [self.kind] if self.kind != "plain" else []
        return ", ".join(parts)


Step = Fault | HandIn


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that happens to a simulated system from outside.

    Args:
        seed: the seed from which the scenario was drawn.
        world: the name of the world.
        order: the seed of the scheduler, which decides the order of the threads.
        steps: what producers hand in, and the faults.
        options: settings of the world, by name.
        store: where the store keeps its items: "memory", "fakeredis", or the URL of a server. Defaults to "memory".
    """

    seed: int
    world: str
    order: int
    steps: tuple[Step, ...]
    options: dict[str, int] = field(default_factory=dict)
    store: str = "memory"

    @property
    def sends(self) -> list[HandIn]:
        return [step for step in self.steps if isinstance(step, HandIn)]

    @property
    def faults(self) -> list[Fault]:
        return [step for step in self.steps if isinstance(step, Fault)]

    def with_steps(self, steps: Sequence[Step], order: int | None = None) -> Scenario:
        """A copy of the scenario with other steps and, if given, another order of the threads."""
        return replace(self, steps=tuple(steps), order=self.order if order is None else order)


def draw_faults(
    rng: random.Random,
    count: int,
    processes: Sequence[str],
    servers: Mapping[str, Sequence[str]],
    *,
    calls: int,
    span_ms: int,
    pause_ms: Sequence[int],
) -> list[Fault]:
    """Draw faults of calls, of servers and of processes at random.

    Args:
        rng: the random generator of the scenario.
        count: how many faults.
        processes: the names of the processes that faults may hit.
        servers: for each server, the `SERVER_FAULTS` that may hit it.
        calls: a fault of a call hits one of the first `calls` calls of a process.
        span_ms: faults of servers and processes strike within this time from the start.
        pause_ms: the possible lengths of pauses. Some are longer than every lease.
    """
    on_servers = [(kind, server) for server, kinds in servers.items() for kind in kinds]
    found: list[Fault] = []
    for _ in range(count):
        where = rng.random()
        if where < 0.65:
            kind, target = rng.choice(list(CALL_FAULTS)), rng.choice(processes)
            amount = (
                rng.choice(pause_ms)
                if kind == "pause"
                else rng.choice((20, 200, 2_000, 5_000)) * kind.startswith("late-")
            )
            # some faults aim at the first calls of a process: starting, joining, reading the state
            at = rng.randrange(12) if rng.random() < 0.3 else rng.randrange(calls)
            found.append(Fault(kind, target, at, amount))
        elif where < 0.9 and on_servers:
            kind, server = rng.choice(on_servers)
            amount = rng.choice((100, 500, 1_000, 3_000))
            if kind == "step-clock":
                amount = rng.choice((-60_000, -7_000, -3_000, -500, 500, 3_000, 7_000, 60_000))
            found.append(Fault(kind, server, rng.randrange(span_ms), amount))
        else:
            found.append(Fault(rng.choice(list(LIFE)), rng.choice(processes), rng.randrange(span_ms)))
    return found


def draw_store_faults(
    rng: random.Random, count: int, processes: Sequence[str], *, span_ms: int, server: str = "store"
) -> list[Fault]:
    """Draw faults that `draw_faults` does not draw: faults of the store's server, and clocks that drift by up to 1 %.

    Args:
        rng: a random generator of its own, so that the faults that `draw_faults` draws for a seed stay the same.
        count: how many faults.
        processes: the names of the processes whose clocks may drift.
        span_ms: the faults strike within this time from the start.
        server: the name of the store's server. Defaults to "store".
    """
    found = []
    for _ in range(count):
        kind = rng.choice(("failover", "failover", "loading", "flush-scripts", "drift"))
        at, target, amount = rng.randrange(span_ms), server, 0
        if kind == "failover":
            amount = rng.choice((100, 1_000, 3_000, 8_000))
        elif kind == "loading":
            amount = rng.choice((100, 500, 1_000, 3_000))
        elif kind == "drift":
            target = rng.choice((server, server, *processes))
            amount = rng.choice((-10_000, -2_000, -500, 500, 2_000, 10_000))
        found.append(Fault(kind, target, at, amount))
    return found

"""Draws random scenarios for the world of durable operations, and defines its times and limits.

All steps but the faults are `HandIn`s. Their `kind` says what happens `at` some time:

    plain                    letter `number` of group `key` dies; when it is replayed, it dies again until it was
                             replayed `fails` times
    replay, delete           a visitor makes operation `number` for group `key`, of `delay` letters a second (0: as
                             fast as possible). The visitor confirms the operation `lasts` ms after it is ready;
                             if `fails` is 1, nobody confirms it
    pause, resume, cancel    a visitor does this to operation `number`
    replay-one, delete-one   a visitor does this to letter `number`
"""

from __future__ import annotations

import random

from wheel_sched.simulation.scenario import LIFE, Fault, HandIn, Scenario, Step
from wheel_sched.simulation.swarm import draw_swarm

NAME = "operations"
TOPIC = "orders"
GROUPS = ("a", "b", "c")
LETTERS = 12
SPAN_MS = 9_000
RUNNER_LEASE_MS = 3_000
CLAIM_LEASE_MS = 2_000
QUIET_MS = 2_500
END_MS = 240_000  # each operation whose faults are over must have ended by then
MAX_REPLAYS = 100

MAKES = ("replay", "delete")
STATES = ("pause", "resume", "cancel")
SINGLE = ("replay-one", "delete-one")
SERVER_FAULTS = {"store": ("outage", "step-clock", "read-only", "full", "loading")}
AIMS = {
    "runner": ("store put_document", "store get_documents", "store change", "store get", "store raise_counts"),
    "visitor": ("store put_document", "store get_documents"),
    "meddler": ("store put_document", "store change"),
}


def draw(seed: int, *, faults: int | None = None) -> Scenario:
    """Draw a random scenario: letters, operations, what visitors do meanwhile, faults, and the number of processes.

    Args:
        seed: decides everything.
        faults: how many faults. Defaults to a random number: 5 in most scenarios, else 0, 1 or 2.
    """
    rng = random.Random(f"{NAME} {seed}")
    faults = rng.choice((0, 1, 2, *[5] * 9)) if faults is None else faults
    fails = rng.choice(((0,), (0, 0, 1), (1, 2), (9,)))
    late = rng.choice((0, 0, 0.2))
    groups = GROUPS[: rng.choice((1, 2, 3))]
    steps: list[Step] = [
        HandIn(
            number,
            at=rng.randrange(SPAN_MS) if rng.random() < late else 0,
            fails=rng.choice(fails),
            key=rng.choice(groups),
        )
        for number in range(LETTERS)
    ]
    made = rng.choice((1, 1, 2, 3))
    for number in range(made):
        steps.append(
            HandIn(
                number,
                at=300 + rng.randrange(2_000),
                delay=rng.choice((0, 1, 2, 4)),
                fails=rng.choice((0, 0, 0, 0, 0, 1)),
                lasts=rng.choice((0, 0, 500, 3_000)),
                kind=rng.choice(("replay", "replay", "replay", "delete")),
                key=rng.choice(groups),
            )
        )
    steps += [
        HandIn(rng.randrange(made), at=rng.randrange(SPAN_MS), kind=rng.choice(STATES))
        for _ in range(rng.choice((0, 0, 1, 3)))
    ]
    steps += [
        HandIn(rng.randrange(LETTERS), at=rng.randrange(SPAN_MS), kind=rng.choice(SINGLE))
        for _ in range(rng.choice((0, 2, 6)))
    ]
    options = {"runners": rng.choice((1, 2, 2)), "shards": rng.choice((1, 2)), "makers": made}
    targets = [name for name in processes_of(options) if name != "consumer"]
    targets += [name for name in targets if name.startswith("runner")] * 2
    pause_ms = (500, 4_000, 8_000, 70_000)
    steps += draw_swarm(rng, faults, targets, SERVER_FAULTS, AIMS, calls=60, span_ms=SPAN_MS, pause_ms=pause_ms)
    if faults and rng.random() < 0.3:
        steps.append(Fault(rng.choice([*LIFE]), "consumer", rng.randrange(SPAN_MS)))
    if faults and rng.random() < 0.15:  # so long that the store forgets its answers
        steps.append(Fault("outage", "store", rng.randrange(SPAN_MS), rng.choice((50_000, 65_000))))
    return Scenario(seed, NAME, rng.getrandbits(32), tuple(steps), options)


def processes_of(options: dict[str, int]) -> list[str]:
    """The names of the processes of a scenario with these options."""
    runners = [f"runner-{number}" for number in range(options["runners"])]
    return [*runners, *(f"visitor-{number}" for number in range(options["makers"])), "meddler-0", "consumer"]

"""Draws scenarios for the worlds of retry topics, and holds what they have in common: topics, times and limits."""

from __future__ import annotations

import random
from collections.abc import Sequence

from retry_topic.simulation.hostile import broker_faults, hostile
from wheel_sched.simulation.scenario import (
    SCALING,
    Fault,
    HandIn,
    Scenario,
    Step,
    draw_faults,
    draw_store_faults,
)
from wheel_sched.simulation.swarm import draw_swarm

GROUP = "billing"
TOPIC = "orders"
SPAN_MS = 8_000
DELAY_MS = 1_000
MAX_ATTEMPTS = 4
IDLE_MS = 2_000
LEASE_MS = 2_000
SWEEP_MS = 5_000
WAIT_MS = 2_000  # the longest delay that a record may ask for
CRASH_CAP = 3
QUIET_MS = 8_000  # longer than each lease, pause and backoff
OUT = (TOPIC, f"{GROUP}.redelivery")  # where services publish
AT_ONCE = 40  # messages that one process holds at most: what it has read, and what it publishes
JOINED_MS = 1_200  # over a log: by then the first members share the partitions, so that none moves with records in hand
END_MS = 90_000  # everything must have ended by then: see `checker`

SERVER_FAULTS = {
    "store": ("outage", "step-clock", "read-only", "full", "rewind"),
    "broker": ("outage", "redeliver"),
}
# the calls that faults are aimed at, by role
AIMS = {
    "consumer": ("broker poll", "broker ack", "broker forward", "broker beat", "store raise_counts"),
    "producer": ("broker publish", "store known", "store schedule_known"),
    "service": (
        *("broker poll", "broker publish", "broker ack", "broker beat"),
        *("store claim", "store settle", "store schedule_counted", "store raise_counts", "store window"),
    ),
}
LOG_AIMS = {
    "consumer": ("broker poll", "broker commit", "broker forward", "broker heartbeat", "broker join"),
    "producer": AIMS["producer"],
    "service": (
        *("broker send claim", "broker init producer", "broker last claim", "broker fetch", "broker assignment"),
        *("broker heartbeat", "store accept", "store claim", "store settle", "store own", "store resolve"),
        *("store raise_counts+positions", "store positions", "store identity"),
    ),
}
# what the messages of a history are drawn from: delays, failures, and how long an attempt takes
DELAYS = ((0,), (300,), (0, 0, 0, 300, 1_500), (1_000, 1_001))
FAILS = ((0, 1), (1,), (0, 0, 0, 1, 1, 2, 0, 1, MAX_ATTEMPTS), (0, 2, MAX_ATTEMPTS))
LASTS = ((0,), (0, 50), (0, 0, 0, 0, 5, 50, 1_000, 3_000), (0, 0, 3_000))


def draw(
    seed: int,
    *,
    log: bool = False,
    ordered: bool = False,
    messages: int = 20,
    faults: int | None = None,
    store_faults: bool = True,
) -> Scenario:
    """Draw a scenario.

    One history in four has few faults, so that each repeat must have its reason. Each history of the unordered worlds
    draws its messages and its faults from a few of the possible values: see `wheel_sched.simulation.swarm`.

    Args:
        seed: decides everything.
        log: whether the topics are logs with transactions, as Kafka's, instead of queues. Defaults to False.
        ordered: whether messages have keys, and consumers keep the order of each key. Defaults to False.
        messages: how many messages. Defaults to 20.
        faults: how many faults. Defaults to 0 to 5.
        store_faults: whether up to two faults of `draw_store_faults` come on top. Defaults to True.
    """
    name = f"retry{'-log' if log else ''}{'-ordered' if ordered else ''}"
    rng = random.Random(f"{name} {seed}")
    faults = rng.choice((0, 1, 1, 2, *[5] * 12)) if faults is None else faults
    keys = rng.choice((4, 5, 6)) if ordered else 0
    moments: Sequence[int] = range(SPAN_MS // 2)
    delays: Sequence[int] = (0, 0, 0, 300, 1_500)
    fails: Sequence[int] = (0, 0, 1, 1, 2, MAX_ATTEMPTS)
    lasts: Sequence[int] = (0, 0, 0, 0, 5, 50, 1_000, 3_000)
    kinds: Sequence[str] = ("plain",) if log else ("plain", "plain", "plain", "twice")
    if not ordered:
        moments = [rng.choice(moments) for _ in range(rng.choice((1, 2, 4, 20)))]
        delays, fails, lasts = rng.choice(DELAYS), rng.choice(FAILS), rng.choice(LASTS)
        kinds = rng.choice((("plain",), ("then-fails",), ("plain", "plain", "then-fails" if log else "twice")))
    steps: list[Step] = [
        HandIn(
            number,
            at=rng.choice(moments),
            delay=rng.choice(delays),
            fails=rng.choice(fails),
            lasts=rng.choice(lasts),
            kind=rng.choice(kinds) if len(kinds) > 1 else kinds[0],
            key=f"k{rng.randrange(keys)}" if keys else "",
        )
        for number in range(messages)
    ]
    options = {
        "services": rng.choice((1, 2, 2) if log and not ordered else (1, 1, 2)),
        "consumers": rng.choice((1, 2)),
        "shards": rng.choice((1, 2)),
        "workers": rng.choice((1, 1, 2)),
    }
    processes, pause_ms = processes_of(options), (100, 1_000, 3_000, 7_000)
    if ordered:
        steps += draw_faults(rng, faults, processes, SERVER_FAULTS, calls=60, span_ms=SPAN_MS, pause_ms=pause_ms)
    else:
        aims = LOG_AIMS if log else AIMS
        steps += draw_swarm(rng, faults, processes, SERVER_FAULTS, aims, calls=60, span_ms=SPAN_MS, pause_ms=pause_ms)
    order = rng.getrandbits(32)
    if not ordered:
        steps = _with_hostility(random.Random(f"{name} {seed} hostile"), name, steps, options)
    if store_faults and faults and not ordered:
        rng = random.Random(f"{name} {seed} store")  # its own: the draws above keep their histories
        steps += draw_store_faults(rng, rng.choice((0, 1, 1, 2)), processes, span_ms=SPAN_MS)
    return Scenario(seed, name, order, tuple(steps), options)


def _with_hostility(rng: random.Random, name: str, steps: list[Step], options: dict[str, int]) -> list[Step]:
    """Some more draws, from a generator of their own: the draws above keep their histories."""
    faults = any(isinstance(step, Fault) for step in steps)
    if rng.random() < 0.5:
        steps = hostile(rng, steps)
        options["signed"] = rng.choice((0, 1))
    if faults and rng.random() < 0.5:
        steps = [*steps, *broker_faults(rng, name, SPAN_MS)]
    if faults and rng.random() < 0.3:
        target = rng.choice([process for process in processes_of(options) if process != "producer"])
        at, for_ms = rng.randrange(SPAN_MS), rng.choice((500, 3_000, 8_000))
        steps = [*steps, Fault(rng.choice([*SCALING]), target, at, for_ms)]
    return steps


def processes_of(options: dict[str, int]) -> list[str]:
    services = [f"service-{number}" for number in range(options["services"])]
    return [*services, *(f"consumer-{number}" for number in range(options["consumers"])), "producer"]

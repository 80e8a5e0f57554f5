"""Draws random scenarios for the worlds of retry topics, and defines the topics, times and limits of these worlds."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

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
AT_ONCE = 40  # the most messages that one process holds: those it has read, and those it publishes
JOINED_MS = 1_200  # over a log, the first members have shared the partitions by then; the producer starts after that
QUICK_MS = 200  # the longest attempt in a world of fair keys
END_MS = 90_000  # everything must have ended by then: see `checker`

SERVER_FAULTS = {
    "store": ("outage", "step-clock", "read-only", "full", "rewind"),
    "broker": ("outage", "redeliver"),
}
# the calls that faults may name, by role of the process
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
# each history chooses one tuple of delays, one of failures and one of durations, and draws its messages from them
DELAYS = ((0,), (300,), (0, 0, 0, 300, 1_500), (1_000, 1_001))
FAILS = ((0, 1), (1,), (0, 0, 0, 1, 1, 2, 0, 1, MAX_ATTEMPTS), (0, 2, MAX_ATTEMPTS))
LASTS = ((0,), (0, 50), (0, 0, 0, 0, 5, 50, 1_000, 3_000), (0, 0, 3_000))


def draw(
    seed: int,
    *,
    log: bool = False,
    ordered: bool = False,
    fair: bool = False,
    messages: int = 20,
    faults: int | None = None,
    store_faults: bool = True,
) -> Scenario:
    """Draw a random scenario: messages, faults, and the numbers of processes and shards.

    One scenario in four has at most two faults, so that the checker accepts few repeats. In the unordered worlds each
    scenario uses only a few of the possible kinds of messages and faults: see `wheel_sched.simulation.swarm`.

    Args:
        seed: decides everything.
        log: whether the topics are logs with transactions, like those of Kafka, or queues. Defaults to False.
        ordered: whether messages have keys, and consumers keep the order of each key. Defaults to False.
        fair: whether the topic shares its retries between the keys of its messages; only for queues without order.
            Defaults to False.
        messages: how many messages. Defaults to 20.
        faults: how many faults. Defaults to a random number: 5 in most scenarios, else 0, 1 or 2.
        store_faults: whether to add up to two faults of `draw_store_faults` to an unordered scenario that has faults.
            Defaults to True.
    """
    name = f"retry{'-log' if log else ''}{'-ordered' if ordered else ''}{'-fair' if fair else ''}"
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
    if fair:
        steps = _with_keys(random.Random(f"{name} {seed} fair"), steps, options)
    if store_faults and faults and not ordered:
        rng = random.Random(f"{name} {seed} store")  # a new generator: the draws above stay the same
        steps += draw_store_faults(rng, rng.choice((0, 1, 1, 2)), processes, span_ms=SPAN_MS)
    return Scenario(seed, name, order, tuple(steps), options)


def _with_hostility(rng: random.Random, name: str, steps: list[Step], options: dict[str, int]) -> list[Step]:
    """Add hostile messages, faults of the broker, and a process that starts or stops, each with some probability.

    `rng` is a new generator, so that the draws before this call stay the same.
    """
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


def _with_keys(rng: random.Random, steps: list[Step], options: dict[str, int]) -> list[Step]:
    """Give the messages fair keys, most of them the same one, and let many wait at the same time.

    No handler is slow. With a cap of one in flight, the attempts of a key run one after the other. Ten messages of one
    key, with four attempts of 3 s each, would need 120 s, and so more than `END_MS`.
    """
    options["batch"] = rng.choice((1, 2, 5))
    options["cap"] = rng.choice((0, 0, 1, 2))
    keys = ("big", "big", "big", "a", "b", "c")
    return [
        replace(step, key=rng.choice(keys), at=step.at // 4, lasts=min(step.lasts, QUICK_MS))
        if isinstance(step, HandIn)
        else step
        for step in steps
    ]


def processes_of(options: dict[str, int]) -> list[str]:
    services = [f"service-{number}" for number in range(options["services"])]
    return [*services, *(f"consumer-{number}" for number in range(options["consumers"])), "producer"]

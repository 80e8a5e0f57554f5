"""Judges a history of the retry world by the words of docs/guarantees.md.

It knows what producers were told, what handlers saw, and what is left in the servers. It does not read any counter of
the product.
"""

from __future__ import annotations

import re
from collections import Counter

from retry_topic.simulation.retry_world import (
    DELAY_MS,
    GROUP,
    IDLE_MS,
    LEASE_MS,
    MAX_ATTEMPTS,
    TOPIC,
    HandlerCall,
    RetryWorld,
    draw,
)
from wheel_sched.simulation.scenario import Fault, Scenario
from wheel_sched.simulation.trace import Trace
from wheel_sched.simulation.world import MS

AT_ONCE = 40  # messages that one process holds at most: what it has read, and what it publishes


def _allows(fault: Fault, call: str, log: bool) -> int:
    """How many attempts may come again because of a fault; 0: the product makes up for it.

    A repeat comes from a process that dies or stands still with messages in its hands, from a broker's reply that was
    lost while it published, and from a server that forgot. A lost reply of the store, an acknowledgement that is
    repeated, a process that is stopped in order and a server that is away for a moment cause none.
    """
    long = fault.amount >= min(IDLE_MS, LEASE_MS) // 2
    match fault.kind:
        case "stop":
            return AT_ONCE if log else 0  # partitions move, and others may have records of them in their hands
        case "kill-before" | "kill-after" | "kill" | "rewind":
            return 0 if fault.target == "producer" and not log else AT_ONCE
        case "redeliver":
            return AT_ONCE
        case "pause":
            return AT_ONCE if long and fault.target != "producer" else 0
        case "outage" | "read-only" | "full":
            return AT_ONCE if long else 0
        case "step-clock":
            return AT_ONCE if fault.amount > 0 else 0
        case "late-reply":
            return AT_ONCE if long and not call.startswith("broker publish") else 0
        case "lose-request" | "lose-reply" | "repeat-request" | "late-request":
            if fault.target == "producer":
                return AT_ONCE if log else 0
            # over a log, a member that joins or leaves late moves partitions whose records are in hand
            moving = "broker" if log else ("broker publish", "broker forward", "broker poll")
            return AT_ONCE if call.startswith(moving) else 0
        case _:
            return 0


def violations(run: RetryWorld) -> list[str]:
    """What the history did wrong; empty when it kept every promise. Each line begins with the invariant's name."""
    found = [f"broken: {what}" for what in run.world.broken]
    calls: dict[int, list[HandlerCall]] = {}
    for attempt in run.attempts:
        calls.setdefault(attempt.number, []).append(attempt)
    dead = _dead_letters(run)
    found += _lost(run, calls, dead)
    found += _early(run, calls)
    found += _caps(run, calls, dead)
    found += _duplicates(run, calls)
    found += _released_once(run)
    found += _leaks(run)
    return found


def _kinds(run: RetryWorld) -> Counter[str]:
    return Counter(fault.kind for fault, _ in run.world.struck)


def _dead_letters(run: RetryWorld) -> dict[int, int]:
    """The messages among the dead letters of the store, and how often each is there."""
    found: Counter[int] = Counter()
    for shard in run.store.backend.shards:
        for item in shard.items.values():
            if item.state == "dead":
                found[_number_in(item.id)] += 1
    return dict(found)


def _number_in(item_id: str) -> int:
    """The message's number: the producer gave it the id m<number>."""
    found = re.match(r"m(\d+)", item_id)
    return int(found[1]) if found else -1


def _lost(run: RetryWorld, calls: dict[int, list[HandlerCall]], dead: dict[int, int]) -> list[str]:
    """Every message that the producer was told is sent ends: a handler succeeds, or it is a dead letter."""
    found = []
    undone = _undone(run)
    for number, told in sorted(run.told.items()):
        done = any(one.outcome == "ok" for one in calls.get(number, ()))
        if told.outcome != "sent" or done or number in dead or number in undone:
            continue
        found.append(f"lost: message {number}, sent at {told.at_ns // MS} ms, has neither succeeded nor died")
    return found


def _undone(run: RetryWorld) -> set[int]:
    """The messages of which the server has lost a write: with `everysec` that is allowed."""
    return {int(number) for call in run.store.lost_calls for number in re.findall(r"\bm(\d+)", repr(call))}


def _stepped(run: RetryWorld, since_ns: int, until_ns: int) -> bool:
    """Whether the store's clock jumped forward between two moments, or up to 1.5 s before.

    The intake from a log lets its own clock continue the store's time for a second. A due time that it gives just after
    a jump is that of the clock before the jump, as for a message that failed just before it.
    """
    moments = (fault.at * MS for fault, _ in run.world.struck if fault.kind == "step-clock" and fault.amount > 0)
    return any(since_ns - 1_500 * MS <= moment <= until_ns for moment in moments)


def _early(run: RetryWorld, calls: dict[int, list[HandlerCall]]) -> list[str]:
    """No attempt begins before its time: the delay after the failure, by the store's clock."""
    found = []
    # a step back of up to 5 s is ignored, so for that time the clocks of two shards may differ by it
    back_ms = 2 * run.store.steps_back_ms
    for number, attempts in sorted(calls.items()):
        told, send = run.told.get(number), run.sends[number]
        first = min(attempts, key=lambda one: one.began_ns)
        if told is not None and first.began_wall_ms + back_ms < told.wall_ms + send.delay:
            found.append(f"early: message {number} came at {first.began_ns // MS} ms, before its delay had passed")
        for one in attempts:
            before = [
                other
                for other in attempts
                if other.outcome == "failed" and other.attempt == one.attempt - 1 and other.ended_ns <= one.began_ns
            ]
            if one.attempt and not before:
                found.append(f"early: message {number} came as attempt {one.attempt} without a failure before it")
            elif (
                before
                and one.began_wall_ms + back_ms < min(other.ended_wall_ms for other in before) + DELAY_MS
                and not _stepped(run, min(other.ended_ns for other in before), one.began_ns)
            ):
                found.append(f"early: message {number}, attempt {one.attempt}, came at {one.began_ns // MS} ms")
    return found


def _caps(run: RetryWorld, calls: dict[int, list[HandlerCall]], dead: dict[int, int]) -> list[str]:
    """No message has more attempts than its policy allows, and none dies before it has had them."""
    found = []
    for number, attempts in sorted(calls.items()):
        greatest = max(one.attempt for one in attempts)
        if greatest >= MAX_ATTEMPTS:
            found.append(f"caps: message {number} came as attempt {greatest}, and {MAX_ATTEMPTS} are allowed")
        poisoned = any(one.outcome == "running" for one in attempts)
        if number in dead and run.sends[number].fails < MAX_ATTEMPTS and not poisoned and not _kinds(run):
            found.append(f"caps: message {number} died although attempt {run.sends[number].fails} would succeed")
    for number, count in sorted(dead.items()):
        if count > 1 and not _kinds(run):
            found.append(f"duplicates: message {number} is {count} dead letters")
    return found


def _duplicates(run: RetryWorld, calls: dict[int, list[HandlerCall]]) -> list[str]:
    """An attempt runs once, and nothing runs after a success, unless a fault allows it."""
    again: list[str] = []
    for number, attempts in sorted(calls.items()):
        seen: set[int] = set()
        ended_ns: int | None = None
        for one in attempts:
            if one.attempt in seen:
                again.append(f"message {number}, attempt {one.attempt}, at {one.began_ns // MS} ms")
            elif ended_ns is not None and one.began_ns > ended_ns:
                again.append(f"message {number}, attempt {one.attempt}, at {one.began_ns // MS} ms after its success")
            seen.add(one.attempt)
            if one.outcome == "ok" and (ended_ns is None or one.ended_ns < ended_ns):
                ended_ns = one.ended_ns
    log = run.world.scenario.world == "retry-log"
    allowed = sum(_allows(fault, call, log) for fault, call in run.world.struck)
    if len(again) > allowed:
        return [f"duplicates: {len(again)} attempts came again, {allowed} may; first: {again[0]}"]
    return []


def _released_once(run: RetryWorld) -> list[str]:
    """Over a log, each retry is released once, whatever happens, unless the store's server lost writes.

    A producer that repeats a call in doubt may send a second record. Each record is a message of its own.
    """
    if run.world.scenario.world != "retry-log" or "rewind" in _kinds(run):
        return []
    records = Counter(record.value for record in run.broker.records(TOPIC))
    released = Counter(
        (record.value, record.header("retry-attempt")) for record in run.broker.records(f"{GROUP}.redelivery")
    )
    return [
        f"once: message {value.decode()}, attempt {(attempt or b'?').decode()}, was released {count} times"
        for (value, attempt), count in released.items()
        if count > records[value]
    ]


def _leaks(run: RetryWorld) -> list[str]:
    """At the end nothing waits, nothing is leased, and every record is settled."""
    found = []
    for shard in run.store.backend.shards:
        left = Counter(item.state for item in shard.items.values())
        del left["dead"]
        found += [f"leak: shard {shard.number} has {count} items {state}" for state, count in sorted(left.items())]
    found += [f"leak: {topic} has {count} unsettled records" for topic, count in sorted(run.unsettled().items())]
    return found


class RetryKind:
    """The kind of world for `wheel_sched.simulation`."""

    name = "retry"
    packages = ("wheel_sched", "retry_topic")

    def draw(self, seed: int) -> Scenario:
        """See `Kind`."""
        return draw(seed)

    def run(self, scenario: Scenario) -> tuple[Trace, list[str], int]:
        """See `Kind`."""
        history = RetryWorld(scenario)
        history.run()
        return history.world.trace, violations(history), history.world.scheduler.steps


class RetryLogKind(RetryKind):
    """The same over logs with transactions, as Kafka's."""

    name = "retry-log"

    def draw(self, seed: int) -> Scenario:
        """See `Kind`."""
        return draw(seed, log=True)

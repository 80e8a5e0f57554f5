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
    MAX_ATTEMPTS,
    Attempt,
    RetryWorld,
    draw,
)
from wheel_sched.simulation.scenario import Scenario
from wheel_sched.simulation.trace import Trace
from wheel_sched.simulation.world import MS

# A fault of these kinds may make the system deliver messages again; all messages in one process's hands at most.
_AGAIN_AT_MOST = 40


def violations(run: RetryWorld) -> list[str]:
    """What the history did wrong; empty when it kept every promise. Each line begins with the invariant's name."""
    found = [f"broken: {what}" for what in run.world.broken]
    calls: dict[int, list[Attempt]] = {}
    for attempt in run.attempts:
        calls.setdefault(attempt.number, []).append(attempt)
    dead = _dead_letters(run)
    found += _lost(run, calls, dead)
    found += _early(run, calls)
    found += _caps(run, calls, dead)
    found += _duplicates(run, calls)
    found += _leaks(run)
    return found


def _kinds(run: RetryWorld) -> Counter[str]:
    return Counter(fault.kind for fault in run.world.struck)


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


def _lost(run: RetryWorld, calls: dict[int, list[Attempt]], dead: dict[int, int]) -> list[str]:
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


def _early(run: RetryWorld, calls: dict[int, list[Attempt]]) -> list[str]:
    """No attempt begins before its time: the delay after the failure, by the store's clock."""
    found = []
    back_ms = run.store.steps_back_ms
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
            elif before and one.began_wall_ms + back_ms < min(other.ended_wall_ms for other in before) + DELAY_MS:
                found.append(f"early: message {number}, attempt {one.attempt}, came at {one.began_ns // MS} ms")
    return found


def _caps(run: RetryWorld, calls: dict[int, list[Attempt]], dead: dict[int, int]) -> list[str]:
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


def _duplicates(run: RetryWorld, calls: dict[int, list[Attempt]]) -> list[str]:
    """An attempt runs once, unless a fault allows a repeat."""
    again = 0
    for attempts in calls.values():
        seen = Counter(one.attempt for one in attempts)
        again += sum(count - 1 for count in seen.values())
        done = [one.ended_ns for one in attempts if one.outcome == "ok"]
        again += sum(one.began_ns > min(done) for one in attempts if done) - (len(done) - 1 if done else 0)
    struck = sum(_kinds(run).values())
    if again > _AGAIN_AT_MOST * struck:
        return [f"duplicates: {again} attempts came again, with {struck} faults"]
    return []


def _leaks(run: RetryWorld) -> list[str]:
    """At the end nothing waits, nothing is leased, and every record is settled."""
    found = []
    for shard in run.store.backend.shards:
        left = Counter(item.state for item in shard.items.values())
        del left["dead"]
        found += [f"leak: shard {shard.number} has {count} items {state}" for state, count in sorted(left.items())]
    unsettled = run.broker.unsettled()
    unsettled.pop(f"{GROUP}.dead", None)  # nobody reads it
    found += [f"leak: {topic} has {count} unsettled records" for topic, count in sorted(unsettled.items())]
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

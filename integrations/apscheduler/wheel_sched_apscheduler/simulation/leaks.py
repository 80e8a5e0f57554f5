"""Checks what is left in the store at the end of a history, a simulated run of schedulers and a producer."""

from __future__ import annotations

from collections import Counter

from wheel_sched_apscheduler.simulation.job_world import JobWorld


def leaks(history: JobWorld, undone: set[int]) -> list[str]:
    """Check that at the end no item is due or leased, and that the producer has made all its calls.

    A held item must be a paused job, or an item in which a process lists its long runs.
    """
    found = []
    items = history.store.contents.items()
    left = Counter((item.shard, item.state, item.topic) for item in items if item.state in ("due", "leased"))
    found += [f"leak: shard {shard} has {count} {state}, {topic}" for (shard, state, topic), count in left.items()]
    for item in items:
        if item.state == "held" and item.topic != "worker" and not is_paused(history, item.id, undone):
            found.append(f"leak: {item.id!r} is held ({item.reason})")
    if len(history.answers) < len(history.steps) or any(answer.answered_ms < 0 for answer in history.answers.values()):
        found.append("leak: the producer has not made all its calls")
    return found


def is_paused(history: JobWorld, item_id: str, undone: set[int]) -> bool:
    """Whether the producer may have paused this job. A job without a future run time counts as paused."""
    for answer in history.answers.values():
        step = answer.step
        if item_id != f"job{step.number}" or (answer.outcome == "absent" and not answer.doubts):
            continue
        without = step.action in ("add", "reschedule") and max(step.run_times(), default=-1) <= answer.answered_ms
        if step.action == "pause" or without or step.number in undone:
            return True
    return False

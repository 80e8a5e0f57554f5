"""Describes durable operations on dead letters in words, for people."""

from __future__ import annotations

from retry_topic.management.dead_letter_operations import DELETE
from wheel_sched.management.operations import DurableOperation


def meaning(operation: DurableOperation) -> str:
    """What an operation changes, such as "replay dead letters of orders, group 3f2a"."""
    verb = "delete" if operation.kind == DELETE else "replay"
    arguments = operation.arguments
    if "search" in arguments:
        return f"{verb} dead letters that match {arguments['search']}"
    topic, group = arguments.get("topic") or "(no topic)", arguments.get("group") or "(none)"
    return f"{verb} dead letters of {topic}, group {group}"


def confirmation(operation: DurableOperation) -> str:
    """What a person confirms: the change, the exact number of letters, and the pace."""
    pace = "" if operation.rate is None else f", about {operation.rate:g} a second"
    pace = f", spread over {operation.spread_ms / 1000:g} s" if operation.spread_ms else pace
    return f"{meaning(operation)}: exactly {operation.matched:,}{pace}"


def outcome(operation: DurableOperation) -> str:
    """The state of an operation and its counts, such as "done: 7 of 9; left: 2 gone meanwhile"."""
    left = ", ".join(f"{count:,} {why}" for why, count in operation.left.items())
    words = f"{operation.state}: {operation.done:,} of {operation.matched:,}"
    return words + (f"; left: {left}" if left else "") + (f"; {operation.error}" if operation.error else "")

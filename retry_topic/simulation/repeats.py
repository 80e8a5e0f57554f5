"""Decides how many repeated attempts a fault of a history (a simulated run) excuses."""

from __future__ import annotations

from retry_topic.simulation.drawing import AT_ONCE, IDLE_MS, JOINED_MS, LEASE_MS
from retry_topic.simulation.retry_world import RetryWorld
from wheel_sched.simulation.scenario import Fault


def repeats_allowed(fault: Fault, call: str, in_hand: int, run: RetryWorld) -> int:
    """How many attempts may run again because of a fault. 0: the product prevents every repeat.

    `call` is the call that the fault hit, or "". `in_hand` counts the messages that the hit processes held.

    These faults cause repeats: a process dies or is paused for long while it holds messages; partitions move; the
    broker's reply to a publish or a forward is lost; a server loses writes or is away for long; its clock steps
    forward. These cause none: the store's reply is lost, and a server is away for a moment. Over queues, a process that
    stops in order and an acknowledgement that arrives twice cause none either.
    """
    log = run.log
    long = fault.amount >= min(IDLE_MS, LEASE_MS) // 2
    match fault.kind:
        case "stop":
            return AT_ONCE if log else 0  # partitions move while other members hold records of them
        case "kill-before" | "kill-after" | "kill":
            return 0 if fault.target == "producer" and not log else in_hand
        case "rewind" | "failover":
            return AT_ONCE
        case "redeliver":
            return in_hand
        case "expel" | "recreate" | "start":
            return AT_ONCE if log else 0  # partitions move
        # A claim's transaction carries the claim's number. After a forward in doubt, the member joins again.
        case "late-commit" | "untold-commit":
            return AT_ONCE if call.startswith("broker forward") else 0
        case "late-produce":
            return AT_ONCE if call else 0
        case "pause":
            return in_hand if long and fault.target != "producer" else 0
        case "outage" if log and fault.target == "broker" and not fault.call and fault.at < JOINED_MS:
            return AT_ONCE  # a member that joins late moves partitions
        case "outage" | "read-only" | "full" | "loading":
            return AT_ONCE if long else 0
        case "step-clock":
            return AT_ONCE if fault.amount > 0 else 0
        case "late-reply":
            return AT_ONCE if long and not call.startswith("broker publish") else 0
        case "lose-request" | "lose-reply" | "repeat-request" | "late-request":
            if fault.target == "producer":
                return AT_ONCE if log else 0
            # over a log, a member that joins or leaves late moves partitions while other members hold their records
            moving = "broker" if log else ("broker publish", "broker forward", "broker poll")
            return AT_ONCE if call.startswith(moving) else 0
        case _:
            return 0

"""Judges what happened to hostile messages, and finds the messages that the broker itself has lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from retry_topic.simulation.drawing import CRASH_CAP, MAX_ATTEMPTS
from retry_topic.simulation.hostile import is_forged, number_in
from retry_topic.simulation.log_server import LogServer
from retry_topic.simulation.retry_world import HandlerCall, RetryWorld
from wheel_sched.simulation.scenario import FORGETTING


def excused(run: RetryWorld) -> set[int]:
    """The messages that the checker does not judge, because the broker itself has lost them with a deleted topic.

    The result has the unsettled records of the deleted topics. If the store has lost writes too, the intake reads the
    retry topics again. Then the result has all records of the deleted topics. It also has all forged records, because
    no id shows which of them the store has lost.
    """
    kinds = {fault.kind for fault, _ in run.world.struck}
    lost: set[int] = set()
    if isinstance(run.broker, LogServer):
        gone = run.broker.deleted if kinds & FORGETTING else run.broker.lost
        lost = {number_in(record.value) for record in gone}
    if kinds & FORGETTING:
        lost |= {number for number, send in run.sends.items() if is_forged(send)}
    return lost


def hostile_violations(
    run: RetryWorld, calls: Mapping[int, Sequence[HandlerCall]], letters: Mapping[int, Sequence[str]]
) -> list[str]:
    """The promises about hostile messages that the product broke in this run, one text each."""
    found: list[str] = []
    quiet = not run.world.struck
    log = isinstance(run.broker, LogServer)
    for number, send in sorted(run.sends.items()):
        attempts, reasons, result = calls.get(number, ()), letters.get(number, ()), run.results.get(number)
        outcome = "" if result is None else result.outcome
        if send.kind == "huge" and log:
            if attempts or (not send.delay and outcome == "sent"):
                found.append(f"size: message {number} is above the size limit, and was {outcome}")
            if any("too large" not in reason for reason in reasons):
                found.append(f"size: message {number} died because of {reasons[0]!r}, and it is too large")
        if send.kind in ("huge", "just-fits") and send.fails and any(one.attempt for one in attempts):
            found.append(f"size: message {number} has failed, is too large to wait, and came again")
        if send.kind == "poison":
            if any("poison" not in reason for reason in reasons):
                found.append(f"caps: message {number} kills its process, and died because of {reasons[0]!r}")
            if quiet and len(attempts) > CRASH_CAP:
                found.append(f"caps: message {number} has killed {len(attempts)} processes, more than {CRASH_CAP}")
        elif quiet and not run.fatal and any("poison" in reason for reason in reasons):
            found.append(f"caps: message {number} was taken for poison, and has killed no process")
        if is_forged(send) and quiet and run.fatal == 0:
            failed = sum(one.outcome == "failed" for one in attempts)
            if failed > MAX_ATTEMPTS * run.tries.get(number, 1):
                found.append(f"caps: message {number}, {send.kind}, has failed {failed} times")
    return found

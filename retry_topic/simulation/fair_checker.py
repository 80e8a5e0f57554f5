"""Judges the caps of fair keys in a history of the retry world: at most `max_in_flight` retries of a key run at once.

Only histories without faults are judged: a fault can deliver a message twice, or end the count of a message by timeout.
"""

from __future__ import annotations

from retry_topic.simulation.fair_watch import FAIR_TIMEOUT_MS
from retry_topic.simulation.hostile import is_forged
from retry_topic.simulation.retry_world import HandlerCall, RetryWorld
from wheel_sched.simulation.calls import MS


def fair_violations(run: RetryWorld) -> list[str]:
    """Describes each moment at which too many retries of one fair key ran."""
    cap = run.world.scenario.options["cap"]
    hostile = any(is_forged(send) or send.kind != "plain" for send in run.sends.values())
    if not cap or run.world.struck or hostile:
        return []
    retries = [call for call in run.attempts if call.attempt > 0]
    if any(call.ended_ns - call.began_ns >= FAIR_TIMEOUT_MS * MS for call in retries):
        return []
    found = []
    for call in retries:
        key = run.sends[call.number].key
        together = [one for one in retries if run.sends[one.number].key == key and _runs_at(one, call.began_ns)]
        if len(together) > cap:
            found.append(f"cap: {len(together)} retries of key {key!r} at {call.began_ns // MS} ms, more than {cap}")
    return found


def _runs_at(call: HandlerCall, at_ns: int) -> bool:
    return call.began_ns <= at_ns < call.ended_ns

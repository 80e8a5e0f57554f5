"""Explains a decision in words: why a message is due at this time, or why it is dead.

    attempt 3 of 8: exponential 1s*2^2=4s, full jitter drew 2.7s; due 2026-01-01T00:00:14.700Z; cap by age not
    reached (12s of 1h)

It only renders `Why` and computes nothing again, so the words always match the decision.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from retry_topic.policy.decision import DeadDecision, Decision, Why
from retry_topic.policy.delays import Draw
from wheel_sched.duration import format_duration

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def explain(decision: Decision) -> str:
    """Explain a decision in one line: clauses separated by semicolons, without a full stop."""
    why = decision.why
    clauses = [f"attempt {why.attempt} of {'unlimited' if why.max_attempts is None else why.max_attempts}: "]
    if isinstance(decision, DeadDecision):
        clauses[0] += _death(decision)
    else:
        clauses[0] += _delay(why)
        if why.spread_ms:
            clauses.append(f"spread drew {format_duration(why.spread_ms)} more")
        clauses.append(f"due {format_time(decision.due_ms)}")
    if why.match is not None:
        name = f" ({why.match.rule.name})" if why.match.rule.name else ""
        clauses.append(f"rule {why.match.number}{name}: {why.match.pattern} matched {why.match.subject}")
    if not isinstance(decision, DeadDecision):
        clauses.append(_age(why))
    clauses.append(f"policy {why.policy}")
    return "; ".join(clauses)


def chosen_by(decision: Decision) -> str:
    """What chose the delay of a decision, or why the message is dead: a few words for a list of attempts.

    Example: `rule 2 (throttled) of payments@3`.
    """
    why = decision.why
    source = why.policy
    if why.match is not None:
        name = f" ({why.match.rule.name})" if why.match.rule.name else ""
        source = f"rule {why.match.number}{name} of {source}"
    if isinstance(decision, DeadDecision):
        return "the handler asked for it" if decision.reason == "verdict" else f"{decision.reason}, {source}"
    if why.draw is None:
        return "the handler asked for it"
    raised = why.asked_ms is not None and decision.delay_ms - why.spread_ms != why.draw.delay_ms
    return f"Retry-After, {source}" if raised else source


def format_time(at_ms: int) -> str:
    """Epoch milliseconds as ISO 8601 in UTC; a plain number after the year 9999."""
    try:
        return (_EPOCH + timedelta(milliseconds=at_ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:
        return f"{at_ms} ms"


def _death(decision: DeadDecision) -> str:
    why = decision.why
    if decision.reason == "verdict":
        return "dead, the handler asked for it"
    if decision.reason == "fatal":
        return "dead at once, the error is fatal"
    if decision.reason == "max-attempts":
        return "dead, it was the last attempt allowed"
    limit = format_duration(why.max_age_ms or 0)
    return f"dead, {_delay(why)} would pass the cap by age ({format_duration(why.age_ms)} of {limit} gone)"


def _delay(why: Why) -> str:
    asked_ms = why.asked_ms
    bounded = asked_ms is not None and asked_ms > why.bound_ms
    bound = f", bounded to {format_duration(why.bound_ms)}" if bounded else ""
    if why.draw is None:
        return f"the handler asked for {format_duration(asked_ms or 0)}{bound}"
    text = _draw(why.draw)
    if asked_ms is not None and (why.delay_ms or 0) - why.spread_ms != why.draw.delay_ms:
        text += f", raised by retry-after to {format_duration(asked_ms)}{bound}"
    return text


def _draw(draw: Draw) -> str:
    drawn = format_duration(draw.delay_ms)
    if draw.jitter == "decorrelated":
        return f"decorrelated jitter {draw.formula} drew {drawn}" + (" (at the cap)" if draw.capped else "")
    text = f"{draw.kind} {draw.formula}={format_duration(draw.curve_ms)}" if draw.formula else ""
    if not text:
        text = f"{draw.kind} {format_duration(draw.curve_ms)}"
    elif draw.capped:
        text = f"{draw.kind} {draw.formula} capped at {format_duration(draw.curve_ms)}"
    return text if draw.jitter == "none" else f"{text}, {draw.jitter} jitter drew {drawn}"


def _age(why: Why) -> str:
    if why.max_age_ms is None:
        return f"no cap by age ({format_duration(why.age_ms)} gone)"
    return f"cap by age not reached ({format_duration(why.age_ms)} of {format_duration(why.max_age_ms)})"

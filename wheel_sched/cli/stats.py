"""`wheel-sched stats`: counts of the items that wait, are in flight, are held or are dead, by topic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import click

from wheel_sched.cli.extensions import StatsPart, installed, resolve
from wheel_sched.cli.opening import opened
from wheel_sched.cli.options import Session, json_option, pass_session
from wheel_sched.cli.output import amount, emit, relative, say, table, when
from wheel_sched.cli.overdue import NOTICED_MS, OverdueItems, overdue, unreleased
from wheel_sched.cli.ps import counted
from wheel_sched.store import Counts, DelayStore, LiveMember, Members
from wheel_sched.store.core.items import STATES
from wheel_sched.store.ordering import OrderedKeys
from wheel_sched.store.rate_limits import Flow, RateLimits

_EVENTS = ("accepted", "completed", "cancelled", "lapsed", "died", "requeued", "deleted", "trimmed")


@click.command()
@json_option
@pass_session
def stats(session: Session, as_json: bool) -> None:
    """Count the items that wait, are in flight, are held or are dead.

    Also show the next due time, and totals of all events so far.

    \b
    Examples:
      wheel-sched stats
      wheel-sched stats --json | jq .overdue_ms
    """
    with opened(session.settings) as store:
        answers = _ask(store, session)
    if as_json:
        emit(_as_json(answers, session.settings.namespace))
    else:
        _say(answers)


class _Answers(NamedTuple):
    """What `wheel-sched stats` shows: the numbers that the store and the installed extensions returned."""

    counts: Counts
    shards: int
    locked: int
    parked: Mapping[str, int]
    flows: Sequence[Flow]
    late: OverdueItems
    members: Sequence[LiveMember]
    parts: Sequence[StatsPart]


def _ask(store: DelayStore, session: Session) -> _Answers:
    counts = store.counts()
    locked, parked = OrderedKeys(store).counts(counts.topics)
    flows, late = RateLimits(store).flows(), overdue(store)
    targets = [target for one in installed().extensions for target in one.stats]
    parts = [resolve(target)(store, session.loaded) for target in targets]
    return _Answers(counts, store.shards, locked, parked, flows, late, Members(store).live(), parts)


def _as_json(answers: _Answers, namespace: str) -> dict[str, Any]:
    parked = {topic: count for topic, count in answers.parked.items() if count}
    return {
        **as_dict(answers.counts, answers.shards, namespace),
        "ordered": {"locked_keys": answers.locked, "parked": parked},
        "flows": [_flow(flow) for flow in answers.flows],
        "overdue": answers.late.count,
        "members": dict(Counter(one.member.kind for one in answers.members)),
        **{name: value for part in answers.parts for name, value in part.fields.items()},
    }


def _say(answers: _Answers) -> None:
    counts, late = answers.counts, answers.late
    now_ms = counts.now_us // 1000
    rows = [
        (
            topic or "(none)",
            *(f"{counts.now.get((state, topic), 0):,}" for state in STATES),
            _flag(counts, topic, now_ms),
        )
        for topic in counts.topics
    ]
    rows.append(("all", *(f"{counts.total(state):,}" for state in STATES), ""))
    table(("topic", *STATES, ""), rows, right=(1, 2, 3, 4))
    say()
    say(f"next due   {'nothing waits' if counts.due_head_ms is None else when(counts.due_head_ms, now_ms)}")
    if late.late_ms >= NOTICED_MS:
        topics = sorted(topic for state, topic in counts.now if state == "due")
        say(f"overdue    {late.words}: {'; '.join(unreleased(topics, answers.members, now_ms))}")
    if answers.members:
        say(f"live       {counted(answers.members)}")
    for part in answers.parts:
        for word, text in part.lines:
            say(f"{word.ljust(10)} {text}")
    ever = [f"{counts.happened(event):,} {event}" for event in _EVENTS if counts.happened(event)]
    say(f"ever       {', '.join(ever) or 'nothing happened yet'}")
    if answers.locked:
        parked = sum(answers.parked.values())
        say(f"ordered    {amount(answers.locked, 'key')} locked, {amount(parked, 'message')} parked")
    for flow in answers.flows:
        if flow.state == "" and (flow.destination is not None or not {"granted", "spread"} & flow.numbers.keys()):
            continue  # results were reported for this flow, but no policy uses them
        say(f"flow       {_flow_line(flow, now_ms)}")
    if counts.frozen:
        say(f"frozen     {counts.frozen}")


def _flag(counts: Counts, topic: str, now_ms: int) -> str:
    since_ms = counts.paused.get(topic)
    return "" if since_ms is None else f"paused {relative(since_ms, now_ms)}"


_STATES = {"c": "closed", "o": "open", "h": "half open"}


def _flow(flow: Flow) -> dict[str, Any]:
    """A rate limit or a circuit as data for JSON."""
    names = (
        ("granted", "rate", "budget", "interval", "spread")
        if flow.destination is None
        else ("refused", "opens", "probes")
    )
    state = {} if flow.destination is None else {"circuit": _STATES.get(flow.state)}
    return {
        "topic": flow.topic,
        "destination": flow.destination,
        **state,
        **{"interval_us" if name == "interval" else name: flow.numbers.get(name, 0) for name in names},
    }


def _flow_line(flow: Flow, now_ms: int) -> str:
    numbers = flow.numbers
    if flow.destination is None:
        parts = [f"{numbers['granted']:,} released"] if "granted" in numbers else []
        parts += [f"{numbers[name]:,} held back by the {name}" for name in ("rate", "budget") if numbers.get(name)]
        parts += [f"{numbers['spread']:,} spread"] if numbers.get("spread") else []
        return f"{flow.topic}: {', '.join(parts)}"
    until = f" until {when(numbers.get('until', 0), now_ms)}" if flow.state == "o" else ""
    return (
        f"{flow.topic} {flow.destination or '(all)'}: circuit {_STATES.get(flow.state, 'closed')}{until}, "
        f"{numbers.get('refused', 0):,} held back, opened {numbers.get('opens', 0):,} times"
    )


def as_dict(counts: Counts, shards: int, namespace: str) -> dict[str, Any]:
    """The counts of the store as data for JSON."""
    now_ms = counts.now_us // 1000
    head_ms = counts.due_head_ms
    return {
        "namespace": namespace,
        "shards": shards,
        "now_ms": now_ms,
        **{state: counts.total(state) for state in STATES},
        "next_due_ms": head_ms,
        "overdue_ms": 0 if head_ms is None else max(0, now_ms - head_ms),
        "ever": {event: counts.happened(event) for event in _EVENTS},
        "topics": {
            topic: {
                **{state: counts.now.get((state, topic), 0) for state in STATES},
                "paused_since_ms": counts.paused.get(topic),
            }
            for topic in counts.topics
        },
        "epoch": counts.epoch,
        "clock_jumps": counts.jumps,
        "frozen": counts.frozen,
    }

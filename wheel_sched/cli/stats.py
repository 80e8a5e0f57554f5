"""`wheel-sched stats`: counts of the items that wait, are in flight, are held or are dead, by topic."""

from __future__ import annotations

import click

from wheel_sched.cli.options import Session, json_option, pass_session
from wheel_sched.cli.output import emit, note, say, table
from wheel_sched.management.members import counted
from wheel_sched.management.opening import opened
from wheel_sched.management.overdue import overdue_problem
from wheel_sched.management.statistics import CIRCUITS, EVENTS, Statistics, gather
from wheel_sched.management.wording import amount, one_line, relative, when
from wheel_sched.store import Counts
from wheel_sched.store.core.items import STATES
from wheel_sched.store.fair_shares.numbers import FairTopicNumbers
from wheel_sched.store.rate_limits import Flow

_DEEPEST = 3  # at most this many keys of a fair topic are named in its line


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
        statistics = gather(store, session.loaded)
    for part in statistics.parts:
        for text in part.notes:
            note(text)
    if as_json:
        emit(statistics.as_dict())
    else:
        _say(statistics)


def _say(statistics: Statistics) -> None:
    counts = statistics.counts
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
    topics = sorted(topic for state, topic in counts.now if state == "due")
    if found := overdue_problem(statistics.late, topics, statistics.members, now_ms):
        say(f"overdue    {'; '.join(found)}")
    if statistics.members:
        say(f"live       {counted(statistics.members)}")
    for part in statistics.parts:
        for word, text in part.lines:
            say(f"{word.ljust(10)} {text}")
    ever = [f"{counts.happened(event):,} {event}" for event in EVENTS if counts.happened(event)]
    say(f"ever       {', '.join(ever) or 'nothing happened yet'}")
    if statistics.locked:
        parked = sum(statistics.parked.values())
        say(f"ordered    {amount(statistics.locked, 'key')} locked, {amount(parked, 'message')} parked")
    for flow in statistics.flows:
        if flow.state == "" and (flow.destination is not None or not {"granted", "spread"} & flow.numbers.keys()):
            continue  # results were reported for this flow, but no policy uses them
        say(f"flow       {_flow_line(flow, now_ms)}")
    for one in statistics.fair:
        say(f"fair       {_fair_line(one)}")
    if counts.frozen:
        say(f"frozen     {counts.frozen}")


def _fair_line(one: FairTopicNumbers) -> str:
    parts = [f"{one.topic}: {amount(one.active, 'active key')}, {one.waiting:,} overdue, {one.served:,} served"]
    if one.at_limit:
        parts.append(f"{amount(len(one.at_limit), 'key')} at the limit")
    deepest = ", ".join(
        f"{one_line(key.key) or '(none)'} {key.waiting:,}" for key in one.keys[:_DEEPEST] if key.waiting
    )
    return "; ".join([*parts, f"most: {deepest}"] if deepest else parts)


def _flag(counts: Counts, topic: str, now_ms: int) -> str:
    since_ms = counts.paused.get(topic)
    return "" if since_ms is None else f"paused {relative(since_ms, now_ms)}"


def _flow_line(flow: Flow, now_ms: int) -> str:
    numbers = flow.numbers
    if flow.destination is None:
        parts = [f"{numbers['granted']:,} released"] if "granted" in numbers else []
        parts += [f"{numbers[name]:,} held back by the {name}" for name in ("rate", "budget") if numbers.get(name)]
        parts += [f"{numbers['spread']:,} spread"] if numbers.get("spread") else []
        return f"{flow.topic}: {', '.join(parts)}"
    until = f" until {when(numbers.get('until', 0), now_ms)}" if flow.state == "o" else ""
    return (
        f"{flow.topic} {flow.destination or '(all)'}: circuit {CIRCUITS.get(flow.state, 'closed')}{until}, "
        f"{numbers.get('refused', 0):,} held back, opened {numbers.get('opens', 0):,} times"
    )

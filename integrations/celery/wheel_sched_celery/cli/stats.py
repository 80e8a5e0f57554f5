"""`celery wheel stats`."""

from __future__ import annotations

import click

from wheel_sched.cli.options import json_option
from wheel_sched.cli.output import emit, say, table
from wheel_sched.management.statistics import counts_as_dict
from wheel_sched.management.wording import when
from wheel_sched.store.core.items import STATES
from wheel_sched_celery.beat.entries import BeatEntries
from wheel_sched_celery.beat.shown_entry import entries_of
from wheel_sched_celery.cli.choosing import held_tasks
from wheel_sched_celery.management.beat_findings import START, beat_state, late_words

_EVENTS = {"accepted": "accepted", "completed": "sent", "cancelled": "cancelled", "died": "given up"}


@click.command()
@json_option
@click.pass_context
def stats(ctx: click.Context, as_json: bool) -> None:
    """Count tasks by queue and state, show what is due next, and count what has happened so far.

    \b
    Examples:
      celery -A proj wheel stats
      celery -A proj wheel stats --json | jq .overdue_ms
    """
    tasks = held_tasks(ctx)
    counts = tasks.counts()
    plain = counts_as_dict(counts, tasks.store.shards, tasks.wheel.settings.namespace)
    beat = beat_state(BeatEntries(tasks.wheel, tasks.store))
    if as_json:
        plain["queues"] = plain.pop("topics")
        plain["beat"] = beat.as_dict()
        emit(plain)
        return
    rows = [(queue, *(f"{counts.now.get((state, queue), 0):,}" for state in STATES)) for queue in counts.topics]
    rows.append(("all", *(f"{counts.total(state):,}" for state in STATES)))
    table(("queue", "waiting", "in flight", "held", "dead"), rows, right=(1, 2, 3, 4))
    say()
    head_ms = counts.due_head_ms
    say(f"next due   {'nothing waits' if head_ms is None else when(head_ms, plain['now_ms'])}")
    ever = [f"{counts.happened(event):,} {words}" for event, words in _EVENTS.items() if counts.happened(event)]
    if beat.entries:
        first = beat.next
        words = "none waits" if first is None else f"next {first.name}, {when(beat.as_dict()['next_ms'], beat.now_ms)}"
        say(f"beat       {entries_of(len(beat.entries))}, {words}")
        if late := late_words(beat):
            say(f"           {late}; {START}")
    say(f"ever       {', '.join(ever) or 'nothing happened yet'}")

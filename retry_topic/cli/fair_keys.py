"""`wheel-sched list --by key`: the keys of fair topics that have the most overdue messages."""

from __future__ import annotations

import click

from wheel_sched.cli.output import emit, note, table
from wheel_sched.management.wording import one_line, relative
from wheel_sched.store import DelayStore
from wheel_sched.store.fair_shares.numbers import FairTopicNumbers, fair_topic, fair_topics

_SHOWN = 20  # keys of a topic without --limit


def list_keys(store: DelayStore, topic: str | None, limit: int | None, as_json: bool) -> None:
    """Print the keys of a fair topic, or of all fair topics.

    Raises:
        UsageError: the topic is not fair.
    """
    counts = store.counts()
    top = limit or _SHOWN
    if topic is None:
        topics = fair_topics(store, counts, top)
    else:
        found = fair_topic(store, topic, counts, top)
        if found is None:
            raise click.UsageError(f"{topic} is not a fair topic: set [topic.{topic}.fair] in its policy, and restart.")
        topics = [found]
    now_ms = counts.now_us // 1000
    if as_json:
        for one in topics:
            for key in one.keys_as_dicts():
                emit({"topic": one.topic, **key})
        return
    rows = [row for one in topics for row in _rows(one, now_ms)]
    if rows:
        table(("overdue", "oldest due", "in flight", "weight", "topic", "key", ""), rows, right=(0, 2, 3))
    else:
        note("no topic is fair" if not topics else "no key has overdue messages")
    for one in topics:
        if one.rest:
            note(f"{one.topic}: {one.rest:,} more overdue messages under other keys; --limit N shows more keys")
        if not one.exact:
            note(f"{one.topic}: of {one.active:,} keys, only those next in turn were read")


def _rows(one: FairTopicNumbers, now_ms: int) -> list[tuple[str, ...]]:
    return [
        (
            f"{key.waiting:,}",
            "-" if key.oldest_due_ms is None else relative(key.oldest_due_ms, now_ms),
            f"{key.in_flight:,}",
            f"{key.weight:g}",
            one_line(one.topic),
            one_line(key.key) or "(none)",
            "at its limit" if key.key in one.at_limit else "",
        )
        for key in one.keys
    ]

"""Topics in the dashboard: how many messages they hold, who reads them, and the actions that pause and resume them."""

from __future__ import annotations

from retry_topic.dashboard.topics import looking, unread
from retry_topic.dashboard.topics.actions import ACTIONS
from wheel_sched.dashboard import ApiCall, DashboardPage
from wheel_sched.dashboard.schemas import (
    INTEGER,
    INTEGER_OR_NONE,
    NUMBER,
    SWITCH,
    TEXT,
    array,
    listing,
    nullable,
    record,
)

__all__ = ["ACTIONS", "CALLS", "PAGES", "PANELS"]

_NUMBERS = {
    "topic": TEXT,
    "records": INTEGER_OR_NONE,
    "due": INTEGER,
    "leased": INTEGER,
    "held": INTEGER,
    "dead": INTEGER,
    "paused_since_ms": INTEGER_OR_NONE,
}

_FAIR = record(
    topic=TEXT,
    active_keys=INTEGER,
    waiting=INTEGER,
    served=INTEGER,
    capped_keys=INTEGER,
    exact=SWITCH,
    keys=array(
        record(
            key=TEXT, waiting=INTEGER, oldest_due_ms=INTEGER_OR_NONE, in_flight=INTEGER, weight=NUMBER, capped=SWITCH
        )
    ),
    rest=INTEGER,
)

PAGES: tuple[DashboardPage, ...] = (
    DashboardPage("/topics", looking.show, "Topics", live=True),
    DashboardPage("/topics/{topic:path}", looking.show_one, live=True),
)
CALLS: tuple[ApiCall, ...] = (
    ApiCall(
        "/topics",
        looking.answer,
        "The topics, what they hold, and retries that nobody takes in",
        listing("topics", record(**_NUMBERS), problems=array(record(what=TEXT, fix=TEXT)), now_ms=INTEGER),
    ),
    ApiCall(
        "/topics/{topic:path}",
        looking.answer_one,
        "One topic: its numbers, its policy, and the live members that read it",
        record(
            **_NUMBERS,
            policy=TEXT,
            policy_words=TEXT,
            next_due_ms=INTEGER_OR_NONE,
            oldest_dead_ms=INTEGER_OR_NONE,
            fair=nullable(_FAIR),
            dropped=INTEGER,
            replaced=INTEGER,
            readers=array(record(kind=TEXT, name=TEXT, host=TEXT, pid=INTEGER)),
            now_ms=INTEGER,
        ),
    ),
)
PANELS = (unread.panel,)

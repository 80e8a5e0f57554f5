"""Tasks as data: what the pages and the JSON API show, made in one place for both.

Arguments, bodies and the values of headers other than Celery's own are payload. They are left out unless the dashboard
shows payloads. The text of the last error is always shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wheel_sched.dashboard.schemas import (
    INTEGER,
    INTEGER_OR_NONE,
    SWITCH,
    TEXT,
    TEXT_OR_NONE,
    array,
    listing,
    mapping,
    record,
)
from wheel_sched.store.core.counts import Counts
from wheel_sched.store.core.items import STATES
from wheel_sched_celery.management import WaitingTask
from wheel_sched_celery.management.message_contents import Contents, contents_of

_PREVIEW = 400  # characters of arguments in a listing
_PAYLOAD = ("args", "kwargs")
# headers that Celery itself writes, and that say how a task runs
_CELERYS = frozenset(
    {"lang", "task", "id", "shadow", "eta", "expires", "group", "group_index", "retries", "timelimit", "root_id"}
    | {"parent_id", "origin", "ignore_result", "replaced_task_nesting", "compression"}
)

TASK = record(
    id=TEXT,
    item=TEXT,
    task=TEXT,
    queue=TEXT,
    state={"enum": [*STATES]},
    eta_ms=INTEGER_OR_NONE,
    retries=INTEGER_OR_NONE,
    root_id=TEXT_OR_NONE,
    parent_id=TEXT_OR_NONE,
    origin=TEXT_OR_NONE,
    taken_over=SWITCH,
    reason=TEXT_OR_NONE,
)
FOLLOWER = record(kind=TEXT, name=TEXT, id=TEXT)
MESSAGE = {
    **TASK,
    "properties": {
        **TASK["properties"],
        "exchange": TEXT_OR_NONE,
        "routing_key": TEXT_OR_NONE,
        "priority": INTEGER_OR_NONE,
        "expires": TEXT_OR_NONE,
        "declares": array(TEXT),
        "content": TEXT,
        "bytes": INTEGER,
        "followers": array(FOLLOWER),
        "header_names": array(TEXT),
        "last_error": TEXT,
    },
    "required": [
        *TASK["required"],
        "exchange",
        "routing_key",
        "priority",
        "expires",
        "declares",
        "content",
        "bytes",
        "followers",
        "header_names",
        "last_error",
    ],
}
TASKS = listing(
    "tasks",
    TASK,
    cursor=TEXT_OR_NONE,
    counts=record(due=INTEGER, leased=INTEGER, held=INTEGER, dead=INTEGER),
    queues=mapping(INTEGER),
    can_revoke=SWITCH,
    why_no_revoke=TEXT,
)
ONE_TASK = listing("messages", MESSAGE, can_revoke=SWITCH, why_no_revoke=TEXT)


def task_as_dict(waiting: WaitingTask, show_payloads: bool) -> dict[str, Any]:
    """A task of a listing."""
    whole = waiting.as_dict()
    fields = {name: whole[name] for name in ("id", "item", "task", "queue", "state", "eta_ms", "taken_over", "reason")}
    fields["retries"] = whole["retries"] if isinstance(whole["retries"], int) else None
    fields |= {name: _text(whole[name]) for name in ("root_id", "parent_id", "origin")}
    if show_payloads:
        fields |= {name: None if whole[name] is None else str(whole[name])[:_PREVIEW] for name in _PAYLOAD}
    return fields


def message_as_dict(waiting: WaitingTask, show_payloads: bool, last_error: str = "") -> dict[str, Any]:
    """Everything about one message of a task."""
    task = waiting.task
    contents = Contents("a message that cannot be read", None) if task is None else contents_of(task)
    whole = waiting.as_dict()
    fields = {
        **task_as_dict(waiting, show_payloads),
        "exchange": _text(whole["exchange"]),
        "routing_key": _text(whole["routing_key"]),
        "priority": whole["priority"] if isinstance(whole["priority"], int) else None,
        "expires": _text(whole["expires"]),
        "declares": [] if task is None else [_entity(one) for one in task.declare],
        "content": contents.kind,
        "bytes": whole["bytes"],
        "followers": [one._asdict() for one in contents.followers],
        "header_names": sorted(map(str, waiting.headers)),
        "last_error": last_error,
        "celery": {name: waiting.headers[name] for name in sorted(_CELERYS & set(waiting.headers))},
    }
    if show_payloads:
        fields |= {"headers": dict(waiting.headers), "body": contents.text}
        fields |= {name: whole[name] for name in _PAYLOAD}
    return fields


def counts_as_dict(counts: Counts) -> dict[str, int]:
    """How many tasks there are in each state."""
    return {state: counts.total(state) for state in STATES}


def queues_of(counts: Counts) -> dict[str, int]:
    """How many tasks wait for each queue."""
    return {queue: count for (state, queue), count in sorted(counts.now.items()) if state == "due" and count}


def _text(value: Any) -> str | None:
    return None if value is None or value == "" else str(value)


def _entity(value: Mapping[str, Any]) -> str:
    """A queue or exchange that is declared before the message is sent."""
    return f"{value.get('kind')} {value.get('name')}"

"""The pages and the JSON API of the schedule. They only read."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from wheel_sched.dashboard import ApiCall, Dashboard, Parameter
from wheel_sched.dashboard.json_values import json_value
from wheel_sched.dashboard.queries import limit_of
from wheel_sched.dashboard.rendering import as_json, query, shown_lines
from wheel_sched.errors import Rejected
from wheel_sched_celery.beat.entry import STATES
from wheel_sched_celery.dashboard.beat_answers import (
    ENTRIES,
    ONE_ENTRY,
    EntryPage,
    entries_of,
    entry_page,
    one_entry,
    why_no_app,
)
from wheel_sched_celery.dashboard.opening import OpenedTasks, opened_of
from wheel_sched_celery.dashboard.pages import with_tasks
from wheel_sched_celery.management.beat_findings import START, beat_state, late_words

_FOLDER = "wheel_sched_celery"
_PAYLOAD = 20_000  # characters


def _asked(dashboard: Dashboard, request: Request, opened: OpenedTasks) -> EntryPage:
    """The page of entries that a request asks for.

    Raises:
        Rejected: there is no such state, or a value is too long.
    """
    asked = request.query_params
    state = asked.get("state", "")
    if state and state not in STATES:
        raise Rejected(f"expected state to be one of {', '.join(STATES)}, got: {state[:40]!r}")
    name, behind = asked.get("name", "").strip(), asked.get("cursor") or None
    return entry_page(opened, name, state, behind, limit_of(request), dashboard.config.show_payloads)


@with_tasks
def schedule(dashboard: Dashboard, request: Request, opened: OpenedTasks) -> Response:
    """The entries of the schedule."""
    page = _asked(dashboard, request, opened)
    state = beat_state(entries_of(opened))
    pairs = {name: request.query_params.get(name, "") for name in ("name", "state", "limit")}
    values = {
        "entries": page.entries,
        "cursor": page.cursor,
        "total": page.total,
        "states": STATES,
        "pairs": pairs,
        "back": f"/beat{query(pairs)}",
        "late": late_words(state),
        "start": START,
        "why_no_app": why_no_app(opened),
        "now_ms": state.now_ms,
    }
    return dashboard.page(request, f"{_FOLDER}/beat.html", values)


@with_tasks
def entry(dashboard: Dashboard, request: Request, opened: OpenedTasks) -> Response:
    """Everything about one entry."""
    name = request.path_params["name"]
    found = one_entry(dashboard, opened, name)
    shown = {key: found["entry"].get(key) for key in ("args", "kwargs", "options")}
    values = {
        **found,
        "payload": shown_lines(as_json(json_value(shown)), _PAYLOAD),
        "now_ms": opened.tasks.now_ms(),
    }
    return dashboard.page(request, f"{_FOLDER}/beat_entry.html", values)


def _entries(dashboard: Dashboard, request: Request) -> Any:
    opened = opened_of(dashboard)
    page = _asked(dashboard, request, opened)
    late = len(beat_state(entries_of(opened)).overdue)
    return json_value({**page._asdict(), "overdue": late, "why_no_app": why_no_app(opened)})


def _entry(dashboard: Dashboard, request: Request) -> Any:
    return json_value(one_entry(dashboard, opened_of(dashboard), request.path_params["name"]))


CALLS = (
    ApiCall(
        "/beat",
        _entries,
        "Entries of the schedule of Celery's beat, in order of their names",
        ENTRIES,
        (
            Parameter("name", "name of the entry, a pattern with * and ?"),
            Parameter("state", f"one of {', '.join(STATES)}"),
            Parameter("limit", "at most this many, up to 200", "integer"),
            Parameter("cursor", "the cursor in the answer of the page before"),
        ),
    ),
    ApiCall("/beat/{name:path}", _entry, "One entry of the schedule", ONE_ENTRY),
)

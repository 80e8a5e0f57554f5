"""The inbox: a page of the groups of dead letters, searched by state, topic and text.

It reads no dead letters except the samples that it shows; a search for a text reads at most 200 samples more."""

from __future__ import annotations

from typing import Any, get_args

from starlette.requests import Request
from starlette.responses import Response

from retry_topic.dashboard.dead_letters.addresses import group_path
from retry_topic.dashboard.opening import connection_of
from retry_topic.management.inbox.groups import GROUP_STATES, GroupState, Inbox, InboxPage, Sort, is_rising
from wheel_sched.dashboard import ApiCall, Dashboard, DashboardPage, Parameter
from wheel_sched.dashboard.queries import cursor_of, limit_of
from wheel_sched.dashboard.schemas import INTEGER, TEXT, TEXT_OR_NONE, Schema, array, listing, record
from wheel_sched.errors import Rejected

_LONGEST = 200  # characters of the text to search for

GROUP_SCHEMA: Schema = record(
    topic=TEXT,
    group=TEXT,
    state={"enum": list(GROUP_STATES)},
    count=INTEGER,
    ever=INTEGER,
    first_ms=INTEGER,
    last_ms=INTEGER,
    last_id=TEXT,
    by_hour=array(INTEGER),
    error_class=TEXT_OR_NONE,
    error=TEXT_OR_NONE,
    note=record(
        mark={"enum": ["", "acknowledged", "fixed"]},
        marked_by=TEXT,
        marked_ms=INTEGER,
        text=TEXT,
        link=TEXT,
        noted_by=TEXT,
        noted_ms=INTEGER,
    ),
)


def _found(dashboard: Dashboard, request: Request) -> tuple[InboxPage, dict[str, str]]:
    """The page of groups that a request asks for, and the filters of the request without the cursor."""
    asked = request.query_params
    state, sort, text = asked.get("state", ""), asked.get("sort", ""), asked.get("text", "")
    if state not in ("", *GROUP_STATES):
        raise Rejected(f"expected state to be one of {', '.join(GROUP_STATES)}, got: {state[:40]!r}")
    if sort not in ("", *get_args(Sort)):
        raise Rejected(f"expected sort to be count or last, got: {sort[:40]!r}")
    if len(text) > _LONGEST:
        raise Rejected(f"expected a text of at most {_LONGEST} characters, got: {len(text):,}")
    topic = asked.get("topic") or None
    chosen_state: GroupState | None = next((one for one in GROUP_STATES if one == state), None)
    chosen_sort: Sort = "last" if sort == "last" else "count"
    page = Inbox(connection_of(dashboard)).page(
        state=chosen_state,
        topic=topic,
        text=text,
        sort=chosen_sort,
        limit=limit_of(request),
        cursor=cursor_of(request),
    )
    return page, {"state": state, "topic": topic or "", "text": text, "sort": sort}


def _show(dashboard: Dashboard, request: Request) -> Response:
    page, filters = _found(dashboard, request)
    values = {
        "page": page,
        "filters": filters,
        "groups": [
            (one, group_path(one.counted.topic, one.counted.group), is_rising(one.counted.by_hour))
            for one in page.groups
        ],
        "all": sum(page.states.values()),
    }
    return dashboard.page(request, "retry_topic/dead_letters.html", values)


def _answer(dashboard: Dashboard, request: Request) -> Any:
    page, _ = _found(dashboard, request)
    return {
        "groups": [one.as_dict() for one in page.groups],
        "cursor": page.cursor,
        "states": page.states,
        "dead": page.dead,
        "uncounted": page.uncounted,
    }


PAGE = DashboardPage("/dead-letters", _show, "Dead letters", live=True)
CALL = ApiCall(
    "/dead-letters",
    _answer,
    "Dead letters grouped by topic and error",
    listing(
        "groups",
        GROUP_SCHEMA,
        cursor=TEXT_OR_NONE,
        states=record(new=INTEGER, acknowledged=INTEGER, fixed=INTEGER, regressed=INTEGER),
        dead=INTEGER,
        uncounted=INTEGER,
    ),
    (
        Parameter("state", "only groups that are new, acknowledged, fixed or regressed"),
        Parameter("topic", "only groups of this topic"),
        Parameter("text", "only groups with this text in topic, group, note or error, ignoring case"),
        Parameter("sort", "count (default) or last, the time of the last death"),
        Parameter("limit", "at most this many, up to 200", "integer"),
        Parameter("cursor", "the cursor in the answer of the page before"),
    ),
)

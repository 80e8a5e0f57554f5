"""The page of one group of dead letters: its note, its numbers, how its errors differ, and some of its letters."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from retry_topic.dashboard.dead_letters.addresses import group_in
from retry_topic.dashboard.dead_letters.inbox_pages import GROUP_SCHEMA
from retry_topic.dashboard.opening import connection_of
from retry_topic.management.inbox.error_diff import error_parts
from retry_topic.management.inbox.groups import Inbox, InboxGroup, is_rising, is_selectable
from retry_topic.management.inbox.members import group_members
from retry_topic.management.listing import preview
from wheel_sched.dashboard import ApiCall, Dashboard, DashboardPage, NotFound
from wheel_sched.dashboard.schemas import INTEGER, TEXT, array, record

_ERROR = 2_000  # characters of an error that is compared
_TRACEBACKS = 3
_PAYLOAD = 200  # characters of a payload


def found_group(dashboard: Dashboard, topic: str, group: str) -> tuple[InboxGroup, int]:
    """The group of this topic and name, and the store's time in epoch ms.

    Raises:
        NotFound: the store counts no such group.
    """
    found, now_ms = Inbox(connection_of(dashboard)).group(topic, group)
    if found is None:
        raise NotFound(
            f"there is no group {group[:80]!r} of dead letters in topic {topic[:80]!r}: the last of them left over 30 "
            "days ago, or none ever died; see the list of all groups"
        )
    return found, now_ms


def _show(dashboard: Dashboard, request: Request) -> Response:
    topic, group = group_in(request)
    found, now_ms = found_group(dashboard, topic, group)
    counted, connection = found.counted, connection_of(dashboard)
    members = group_members(connection, topic, group, counted.last_id) if is_selectable(topic, group) else []
    shows = dashboard.config.show_payloads
    values = {
        "one": found,
        "now_ms": now_ms,
        "rising": is_rising(counted.by_hour),
        "selectable": is_selectable(topic, group),
        "members": [(entry, preview(entry, _PAYLOAD) if shows else "") for entry in members],
        "parts": error_parts([entry.error[:_ERROR] for entry in members]),
        "tracebacks": list(dict.fromkeys(entry.letter.traceback for entry in members if entry.letter.traceback))[
            :_TRACEBACKS
        ],
        "names": [("topic", topic), ("group", group)],
    }
    return dashboard.page(request, "retry_topic/dead_letters_group.html", values)


def _answer(dashboard: Dashboard, request: Request) -> Any:
    topic, group = group_in(request)
    found, _ = found_group(dashboard, topic, group)
    members = (
        group_members(connection_of(dashboard), topic, group, found.counted.last_id)
        if is_selectable(topic, group)
        else []
    )
    parts = error_parts([entry.error[:_ERROR] for entry in members])
    return {
        **found.as_dict(),
        "members": [
            {
                "id": entry.id,
                "died_ms": entry.found.score_ms,
                "attempt": entry.letter.state.attempt,
                "error": entry.error,
            }
            for entry in members
        ],
        "error_parts": [{"text": one.text, "values": list(one.values), "more": one.more} for one in parts],
    }


PAGE = DashboardPage("/dead-letters/{topic}/{group}", _show)
CALL = ApiCall(
    "/dead-letters/{topic}/{group}",
    _answer,
    "One group of dead letters, some of its letters, and how their errors differ",
    {
        "allOf": [
            GROUP_SCHEMA,
            record(
                members=array(record(id=TEXT, died_ms=INTEGER, attempt=INTEGER, error=TEXT)),
                error_parts=array(record(text=TEXT, values=array(TEXT), more=INTEGER)),
            ),
        ]
    },
)

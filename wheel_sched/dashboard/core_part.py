"""The core's own part of the dashboard: the overview, the live members, and the audit log."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from wheel_sched.dashboard import overview
from wheel_sched.dashboard.audit import AuditLog
from wheel_sched.dashboard.context import Dashboard
from wheel_sched.dashboard.parts import ApiCall, DashboardPage, DashboardPart, Parameter
from wheel_sched.dashboard.queries import cursor_of, limit_of
from wheel_sched.dashboard.schemas import INTEGER, TEXT, TEXT_OR_NONE, listing, record
from wheel_sched.management.members import as_dict, live_members


def _members(dashboard: Dashboard, request: Request) -> Response:
    found, now_ms = live_members(dashboard.store)
    return dashboard.page(request, "members.html", {"members": found, "now_ms": now_ms})


def _members_answer(dashboard: Dashboard, request: Request) -> Any:
    found, now_ms = live_members(dashboard.store, request.query_params.get("kind"))
    return {"members": [as_dict(one, now_ms) for one in found]}


def _audit(dashboard: Dashboard, request: Request) -> Response:
    entries, cursor = AuditLog(dashboard.store).newest(limit_of(request), cursor_of(request))
    values = {"entries": entries, "cursor": cursor, "now_ms": dashboard.store.now_ms()}
    return dashboard.page(request, "audit.html", values)


def _audit_answer(dashboard: Dashboard, request: Request) -> Any:
    entries, cursor = AuditLog(dashboard.store).newest(limit_of(request), cursor_of(request))
    return {"entries": [entry.as_dict() for entry in entries], "cursor": cursor}


_MEMBER = record(id=TEXT, kind=TEXT, name=TEXT, host=TEXT, pid=INTEGER, version=TEXT, since_ms=INTEGER, seen_ms=INTEGER)
_ENTRY = record(at_ms=INTEGER, who=TEXT, action=TEXT, words=TEXT, outcome=TEXT, arguments=TEXT)
_PAGING = (
    Parameter("limit", "at most this many, up to 200", "integer"),
    Parameter("cursor", "the cursor in the answer of the page before"),
)

CORE = DashboardPart(
    name="core",
    place=0,
    pages=(
        DashboardPage("/", overview.show, "Overview", live=True),
        DashboardPage("/members", _members, "Members", live=True, place=80),
        DashboardPage("/audit", _audit, "Audit log", place=90),
    ),
    calls=(
        ApiCall("/overview", overview.answer, "Counts, rates and problems", overview.SCHEMA),
        ApiCall(
            "/members",
            _members_answer,
            "The live consumers, services, workers and schedulers",
            listing("members", _MEMBER),
            (Parameter("kind", "only members of this kind, such as consumer"),),
        ),
        ApiCall(
            "/audit",
            _audit_answer,
            "Who changed what, newest first",
            listing("entries", _ENTRY, cursor=TEXT_OR_NONE),
            _PAGING,
        ),
    ),
)

"""The pages of durable operations: the list of all with their progress, and one operation in detail."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from retry_topic.dashboard.dead_letters.addresses import group_path
from retry_topic.management.dead_letter_operations import DELETE
from retry_topic.management.operation_words import meaning
from wheel_sched.dashboard import ApiCall, Dashboard, DashboardPage, NotFound, Parameter
from wheel_sched.dashboard.queries import cursor_of, limit_of
from wheel_sched.dashboard.schemas import (
    INTEGER,
    INTEGER_OR_NONE,
    NUMBER,
    TEXT,
    TEXT_OR_NONE,
    Schema,
    array,
    listing,
    mapping,
    nullable,
    record,
)
from wheel_sched.errors import NotDone
from wheel_sched.management.operations import DurableOperation, OperationBook

OPERATION_SCHEMA: Schema = record(
    id=TEXT,
    kind=TEXT,
    arguments=mapping(TEXT),
    who=TEXT,
    created_ms=INTEGER,
    state={"enum": ["counting", "ready", "running", "paused", "done", "cancelled", "failed"]},
    matched=INTEGER,
    done=INTEGER,
    left=mapping(INTEGER),
    handled=INTEGER,
    samples=array(TEXT),
    rate=nullable(NUMBER),
    spread_ms=INTEGER_OR_NONE,
    confirmed_by=TEXT,
    started_ms=INTEGER,
    ended_ms=INTEGER,
    error=TEXT,
)


def operation_path(operation_id: str) -> str:
    """The address of an operation's page, below the dashboard's root."""
    return f"/operations/{operation_id}"


def link_of(operation: DurableOperation) -> str:
    """The address of the group whose letters an operation changes; "" if a search chose the letters."""
    arguments = operation.arguments
    return group_path(arguments.get("topic", ""), arguments["group"]) if "group" in arguments else ""


def further(operation: DurableOperation) -> str:
    """How the names of the actions end that let this operation change letters, such as "delete" of "resume-delete"."""
    return "delete" if operation.kind == DELETE else "operation"


def _list(dashboard: Dashboard, request: Request) -> Response:
    found, cursor = OperationBook(dashboard.store).newest(limit_of(request), cursor_of(request))
    rows = [(one, meaning(one), operation_path(one.id), link_of(one), further(one)) for one in found]
    values = {"rows": rows, "cursor": cursor, "now_ms": dashboard.store.now_ms()}
    return dashboard.page(request, "retry_topic/dead_letters_operations.html", values)


def _list_answer(dashboard: Dashboard, request: Request) -> Any:
    found, cursor = OperationBook(dashboard.store).newest(limit_of(request), cursor_of(request))
    return {"operations": [one.as_dict() for one in found], "cursor": cursor}


def found_operation(dashboard: Dashboard, operation_id: str) -> DurableOperation:
    """The operation of this id.

    Raises:
        NotFound: there is no such operation.
    """
    try:
        return OperationBook(dashboard.store).found(operation_id)
    except NotDone as error:
        raise NotFound(str(error)) from error


def _one(dashboard: Dashboard, request: Request) -> Response:
    found = found_operation(dashboard, request.path_params["id"])
    values = {
        "one": found,
        "meaning": meaning(found),
        "link": link_of(found),
        "further": further(found),
        "now_ms": dashboard.store.now_ms(),
    }
    return dashboard.page(request, "retry_topic/dead_letters_operation.html", values)


def _one_answer(dashboard: Dashboard, request: Request) -> Any:
    return found_operation(dashboard, request.path_params["id"]).as_dict()


PAGES = (
    DashboardPage("/operations", _list, "Operations", live=True),
    DashboardPage("/operations/{id}", _one, live=True),
)
CALLS = (
    ApiCall(
        "/operations",
        _list_answer,
        "The durable operations, those that changed last first",
        listing("operations", OPERATION_SCHEMA, cursor=TEXT_OR_NONE),
        (
            Parameter("limit", "at most this many, up to 200", "integer"),
            Parameter("cursor", "the cursor in the answer of the page before"),
        ),
    ),
    ApiCall("/operations/{id}", _one_answer, "One durable operation", OPERATION_SCHEMA),
)

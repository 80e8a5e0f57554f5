"""Reads requests: who sends them, the fields of a form, JSON; and turns errors into answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, ParamSpec, TypeVar
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from wheel_sched.dashboard.actions import ChangedMeanwhile, KeyTaken, NotAllowed
from wheel_sched.dashboard.context import Dashboard
from wheel_sched.dashboard.parts import NotFound
from wheel_sched.dashboard.rights import Authenticate, Visitor
from wheel_sched.dashboard.sessions import PasswordSessions
from wheel_sched.errors import BrokerUnavailable, NotDone, Rejected, StoreUnavailable

P = ParamSpec("P")
T = TypeVar("T")

LARGEST_BODY = 1_000_000
_FIELDS = 2_000


class NotSignedIn(Exception):
    """The request has no known visitor."""


async def identify(request: Request, dashboard: Dashboard, access: Authenticate | PasswordSessions) -> Visitor:
    """Find the visitor and keep it in `request.state`.

    Raises:
        NotSignedIn: nobody known.
    """
    if isinstance(access, PasswordSessions):
        found, signed_in = await run_in_threadpool(access.visitor, request)
    else:
        found, signed_in = access(request), False
    if found is None:
        raise NotSignedIn
    visitor = found.limited(dashboard.config.right)
    request.state.visitor, request.state.signed_in = visitor, signed_in
    return visitor


async def body_of(request: Request) -> bytes:
    """The body of a request.

    Raises:
        Rejected: it is larger than a million bytes; nothing was changed.
    """
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > LARGEST_BODY:
            raise Rejected(f"the request is larger than {LARGEST_BODY:,} bytes: nothing was changed")
        parts.append(part)
    return b"".join(parts)


async def form_of(request: Request) -> dict[str, list[str]]:
    """The fields of a form, each with its values.

    Raises:
        Rejected: it is no form, or too large; nothing was changed.
    """
    body = await body_of(request)
    try:
        pairs = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, max_num_fields=_FIELDS, errors="surrogateescape"
        )
    except ValueError as error:
        raise Rejected(f"expected a form of at most {_FIELDS:,} fields: nothing was changed") from error
    fields: dict[str, list[str]] = {}
    for name, value in pairs:
        fields.setdefault(name, []).append(value)
    return fields


async def json_of(request: Request) -> dict[str, Any]:
    """The JSON object in the body.

    Raises:
        Rejected: the content type is not application/json, or the body is no JSON object; nothing was changed.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # a form of another site can send only other types
        raise Rejected(f"expected content-type application/json, got: {kind[:60] or 'none'}; nothing was changed")
    try:
        found = json.loads(await body_of(request))
    except (ValueError, RecursionError) as error:
        raise Rejected("expected a JSON object: nothing was changed") from error
    if not isinstance(found, dict):
        raise Rejected("expected a JSON object: nothing was changed")
    return found


_STATUS: tuple[tuple[type[Exception], HTTPStatus], ...] = (
    (NotAllowed, HTTPStatus.FORBIDDEN),
    (ChangedMeanwhile, HTTPStatus.CONFLICT),
    (KeyTaken, HTTPStatus.CONFLICT),
    (NotDone, HTTPStatus.CONFLICT),
    (NotFound, HTTPStatus.NOT_FOUND),
    (StoreUnavailable, HTTPStatus.SERVICE_UNAVAILABLE),
    (BrokerUnavailable, HTTPStatus.SERVICE_UNAVAILABLE),
    (Rejected, HTTPStatus.BAD_REQUEST),
)


def status_of(error: Exception) -> HTTPStatus:
    """The HTTP status of an error."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), HTTPStatus.INTERNAL_SERVER_ERROR)


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run blocking work in a worker thread."""
    return await run_in_threadpool(work, *args, **kwargs)

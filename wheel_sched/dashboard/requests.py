"""Reads requests: the visitor, the fields of a form, and JSON. Turns errors into HTTP statuses."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, ParamSpec, TypeVar
from urllib.parse import parse_qsl, unquote

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from wheel_sched.dashboard.actions import ChangedMeanwhile, KeyTaken, NotAllowed
from wheel_sched.dashboard.context import Dashboard
from wheel_sched.dashboard.parts import NotFound
from wheel_sched.dashboard.rights import Authenticate, Visitor
from wheel_sched.dashboard.sessions import PasswordSessions
from wheel_sched.errors import BrokerError, NotDone, Rejected, StoreError, UnknownTopic, WheelSchedError
from wheel_sched.escaping import logger_of

logger = logger_of(__name__)

P = ParamSpec("P")
T = TypeVar("T")

LARGEST_BODY = 1_000_000
_FIELDS = 2_000


NOBODY_LET_IN = "the dashboard cannot find out who you are: nothing was shown or changed; its log says why"


class NotSignedIn(Exception):
    """The request comes from no known visitor."""


class TooLarge(Rejected):
    """The body of a request is larger than a million bytes; nothing was changed."""


class NobodyLetIn(Exception):
    """The dashboard cannot find out who the visitor is, for example because of a wrong line in the password file."""


class Exact(Request):
    """A request whose query keeps bytes that are not UTF-8, because ids and topics may hold them."""

    @property
    def query_params(self) -> QueryParams:
        pairs = parse_qsl(
            self.scope["query_string"].decode("latin-1"), keep_blank_values=True, errors="surrogateescape"
        )
        return QueryParams(pairs)


class ExactJson(Response):
    """An answer in JSON that has only ASCII characters. So a text that is not valid UTF-8 arrives unchanged too."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


async def identify(request: Request, dashboard: Dashboard, access: Authenticate | PasswordSessions) -> Visitor:
    """Find out who sent the request, and keep the visitor in `request.state`.

    Raises:
        NotSignedIn: the request comes from no known visitor.
        NobodyLetIn: looking for the visitor failed.
    """
    signed_in = False
    try:
        if isinstance(access, PasswordSessions):
            found, signed_in = await run_in_threadpool(access.visitor, request)
        else:
            given = access(request)
            found = await given if inspect.isawaitable(given) else given
    except (WheelSchedError, OSError) as error:
        logger.error("dashboard.nobody_let_in: %s: %s", type(error).__name__, error)
        raise NobodyLetIn from error
    if found is None:
        raise NotSignedIn
    visitor = found.limited(dashboard.config.right)
    request.state.visitor, request.state.signed_in = visitor, signed_in
    return visitor


async def body_of(request: Request) -> bytes:
    """The body of a request.

    Raises:
        TooLarge: the body is larger than a million bytes; nothing was changed.
    """
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > LARGEST_BODY:
            raise TooLarge(f"the request is larger than {LARGEST_BODY:,} bytes: nothing was changed")
        parts.append(part)
    return b"".join(parts)


async def form_of(request: Request) -> dict[str, list[str]]:
    """The fields of a form, each with its values.

    A browser changes line breaks, NUL and bytes that are not UTF-8. So the pages put ids and other texts from outside
    into fields whose name ends with %. The value of such a field is percent-encoded, and arrives unchanged.

    Raises:
        Rejected: the body has other bytes than ASCII, too many fields, or is too large; nothing was changed.
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
        if name.endswith("%"):
            fields.setdefault(name[:-1], []).append(unquote(value, errors="surrogateescape"))
        else:
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
    body = await body_of(request)
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Rejected("expected a JSON object: nothing was changed") from error
    if not isinstance(found, dict):
        raise Rejected("expected a JSON object: nothing was changed")
    return found


_STATUS: tuple[tuple[type[Exception], HTTPStatus], ...] = (
    (NotAllowed, HTTPStatus.FORBIDDEN),
    (ChangedMeanwhile, HTTPStatus.CONFLICT),
    (KeyTaken, HTTPStatus.CONFLICT),
    (NotFound, HTTPStatus.NOT_FOUND),
    (UnknownTopic, HTTPStatus.NOT_FOUND),
    (StoreError, HTTPStatus.SERVICE_UNAVAILABLE),
    (BrokerError, HTTPStatus.SERVICE_UNAVAILABLE),
    (TooLarge, HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
    (Rejected, HTTPStatus.BAD_REQUEST),
    (NotDone, HTTPStatus.CONFLICT),
)


def status_of(error: Exception) -> HTTPStatus:
    """The HTTP status of an error."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), HTTPStatus.INTERNAL_SERVER_ERROR)


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run blocking work in a worker thread."""
    return await run_in_threadpool(work, *args, **kwargs)

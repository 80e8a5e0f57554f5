"""Serves the JSON API below /api/v1. Errors are JSON too: `{"error": {"kind": ..., "message": ...}}`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from wheel_sched.dashboard.actions import ChangedMeanwhile, NotAllowed, checked, execute, preview
from wheel_sched.dashboard.addresses import AnyPath, base_of, path_of
from wheel_sched.dashboard.context import Dashboard
from wheel_sched.dashboard.openapi import document
from wheel_sched.dashboard.parts import Action, ApiCall, NotFound, Preview
from wheel_sched.dashboard.requests import (
    NOBODY_LET_IN,
    Exact,
    ExactJson,
    NobodyLetIn,
    NotSignedIn,
    identify,
    in_thread,
    json_of,
    status_of,
)
from wheel_sched.dashboard.rights import Authenticate, Visitor
from wheel_sched.dashboard.security import is_from_here
from wheel_sched.dashboard.sessions import PasswordSessions
from wheel_sched.errors import Rejected, WheelSchedError
from wheel_sched.escaping import logger_of, safe

logger = logger_of(__name__)

PREFIX = "/api/v1"
_ALL = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
Endpoint = Callable[[Request], Awaitable[Response]]


class ApiEndpoints:
    """Makes the routes of the JSON API.

    Args:
        dashboard: what all calls share, such as the store.
        access: who the visitors are.
    """

    def __init__(self, dashboard: Dashboard, access: Authenticate | PasswordSessions) -> None:
        self._dashboard = dashboard
        self._access = access

    def routes(self) -> list[AnyPath]:
        calls = [call for part in self._dashboard.parts for call in part.calls]
        return [
            AnyPath(f"{PREFIX}/openapi.json", self._guarded(self._openapi)),
            AnyPath(f"{PREFIX}/session", self._guarded(self._session)),
            *(AnyPath(PREFIX + call.path, self._guarded(self._call(call))) for call in calls),
            AnyPath(f"{PREFIX}/actions/{{name}}/preview", self._guarded(self._preview), methods=["POST"]),
            AnyPath(f"{PREFIX}/actions/{{name}}", self._guarded(self._execute), methods=["POST"]),
            AnyPath(f"{PREFIX}/{{rest:path}}", self._guarded(self._nothing), methods=_ALL),
        ]

    def _guarded(self, endpoint: Endpoint) -> Endpoint:
        async def guarded(plain: Request) -> Response:
            request = Exact(plain.scope, plain.receive)
            try:
                await identify(request, self._dashboard, self._access)
            except NobodyLetIn:
                return _error("NobodyLetIn", NOBODY_LET_IN, 503)
            except NotSignedIn:
                answer = _error("NotSignedIn", "sign in, or send a name and a password by HTTP Basic", 401)
                if isinstance(self._access, PasswordSessions):
                    answer.headers["www-authenticate"] = 'Basic realm="wheel-sched", charset="UTF-8"'
                return answer
            try:
                return await endpoint(request)
            except ChangedMeanwhile as error:
                return _error("ChangedMeanwhile", str(error), 409, preview=_as_dict(error.preview))
            except (WheelSchedError, OSError) as error:
                status = status_of(error)
                if status >= 500:
                    logger.warning("dashboard.call_failed: %s: %s: %s", path_of(request), type(error).__name__, error)
                return _error(type(error).__name__, safe(str(error)), int(status))

        return guarded

    def _call(self, call: ApiCall) -> Endpoint:
        async def answered(request: Request) -> Response:
            return ExactJson(await in_thread(call.answer, self._dashboard, request))

        return answered

    async def _openapi(self, request: Request) -> Response:
        return ExactJson(document(self._dashboard.parts, base_of(request) + PREFIX))

    async def _session(self, request: Request) -> Response:
        visitor: Visitor = request.state.visitor
        return ExactJson(
            {"name": visitor.name, "right": visitor.right, "csrf_token": self._dashboard.csrf_token(visitor)}
        )

    async def _nothing(self, request: Request) -> Response:
        what = f"{request.method} {request.path_params['rest'][:80]!r}"
        raise NotFound(f"there is no call {what}: nothing was changed; see {PREFIX}/openapi.json")

    def _action(self, request: Request) -> Action:
        """The action of a changing request.

        Raises:
            NotFound: there is no such action.
            NotAllowed: the request lacks the CSRF token, or comes from another site.
        """
        visitor: Visitor = request.state.visitor
        action = self._dashboard.actions.get(request.path_params["name"])
        if action is None:
            known = ", ".join(sorted(self._dashboard.actions))
            raise NotFound(
                f"there is no action {request.path_params['name'][:80]!r}; nothing was changed; known: {known}"
            )
        token = request.headers.get("x-csrf-token", "")
        if not is_from_here(request.headers) or not self._dashboard.is_csrf_token(visitor, token):
            raise NotAllowed(
                f"expected the header X-CSRF-Token with the token of {PREFIX}/session: nothing was changed"
            )
        return action

    async def _preview(self, request: Request) -> Response:
        action = self._action(request)
        arguments = checked(action, await json_of(request))
        found, token = await in_thread(preview, self._dashboard, action, arguments, request.state.visitor)
        return ExactJson({**_as_dict(found), "token": token})

    async def _execute(self, request: Request) -> Response:
        action = self._action(request)
        given = await json_of(request)
        token = given.pop("token", None)
        if not isinstance(token, str):
            raise Rejected(f"{action.name} needs the token of its preview: nothing was changed; ask .../preview first")
        key = request.headers.get("idempotency-key")
        if key is None:
            raise Rejected("expected the header Idempotency-Key with a text of your own choice: nothing was changed")
        arguments = checked(action, given)
        return ExactJson(
            await in_thread(execute, self._dashboard, action, arguments, request.state.visitor, token, key)
        )


def _as_dict(found: Preview) -> dict[str, Any]:
    return {"count": found.count, "words": found.words, "samples": list(found.samples), "warning": found.warning}


def _error(kind: str, message: str, status: int, **more: Any) -> ExactJson:
    return ExactJson({"error": {"kind": kind, "message": message}, **more}, status)

"""Serves the pages for people, their live updates, the forms of actions, and signing in and out."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse

from wheel_sched.dashboard.actions import ChangedMeanwhile, NotAllowed, allow, checked, execute, preview
from wheel_sched.dashboard.addresses import AnyPath, base_of, here, is_local, path_of
from wheel_sched.dashboard.context import Dashboard
from wheel_sched.dashboard.parts import Action, Arguments, DashboardPage, NotFound
from wheel_sched.dashboard.requests import (
    NOBODY_LET_IN,
    Exact,
    NobodyLetIn,
    NotSignedIn,
    form_of,
    identify,
    in_thread,
    status_of,
)
from wheel_sched.dashboard.rights import Authenticate, Visitor
from wheel_sched.dashboard.security import is_from_here
from wheel_sched.dashboard.sessions import PasswordSessions
from wheel_sched.errors import Rejected, WheelSchedError
from wheel_sched.escaping import logger_of

logger = logger_of(__name__)

LIVE_SECONDS = 1.0
LIVE_LONGEST_S = 15.0
_OWN_FIELDS = ("csrf", "token", "key", "back")
Endpoint = Callable[[Request], Awaitable[Response]]


class HtmlEndpoints:
    """Makes the routes of the pages.

    Args:
        dashboard: what all pages share, such as the store.
        access: who the visitors are.
        live: whether pages update themselves.
    """

    def __init__(self, dashboard: Dashboard, access: Authenticate | PasswordSessions, live: bool) -> None:
        self._dashboard = dashboard
        self._access = access
        self._live_updates = live

    def routes(self) -> list[AnyPath]:
        pages = [page for part in self._dashboard.parts for page in part.pages]
        live = [
            AnyPath(f"/live{page.path.rstrip('/')}", self._live(page))
            for page in pages
            if page.live and self._live_updates
        ]
        routes = [AnyPath(page.path, self._guarded(self._page(page))) for page in pages]
        routes.append(AnyPath("/actions/{name}", self._guarded(self._act), methods=["POST"]))
        if isinstance(self._access, PasswordSessions):
            sign_in = partial(self._sign_in, self._access)
            sign_out = self._guarded(partial(self._sign_out, self._access))
            routes.append(AnyPath("/sign-in", sign_in, methods=["GET", "POST"]))
            routes.append(AnyPath("/sign-out", sign_out, methods=["POST"]))
        return [*live, *routes, AnyPath("/{rest:path}", self._guarded(self._nothing))]

    def _guarded(self, endpoint: Endpoint) -> Endpoint:
        """An endpoint that first finds the visitor, and shows errors as pages."""

        async def guarded(plain: Request) -> Response:
            request = Exact(plain.scope, plain.receive)
            try:
                await identify(request, self._dashboard, self._access)
            except NotSignedIn:
                return self._ask_to_sign_in(request)
            except NobodyLetIn:
                return PlainTextResponse(f"{NOBODY_LET_IN}\n", 503)
            try:
                return await endpoint(request)
            except (WheelSchedError, OSError) as error:
                return await in_thread(self._error_page, request, error)

        return guarded

    def _error_page(self, request: Request, error: Exception) -> Response:
        status = status_of(error)
        if status >= 500:
            logger.warning("dashboard.page_failed: %s: %s: %s", path_of(request), type(error).__name__, error)
        values = {"status": int(status), "phrase": status.phrase, "error": str(error)}
        return self._dashboard.page(request, "error.html", values, int(status))

    def _ask_to_sign_in(self, request: Request) -> Response:
        if not isinstance(self._access, PasswordSessions):
            return PlainTextResponse("not signed in; nothing was shown\n", 401)
        return RedirectResponse(f"{base_of(request)}/sign-in?to={quote(here(request), safe='')}", 303)

    def _page(self, page: DashboardPage) -> Endpoint:
        async def shown(request: Request) -> Response:
            if page.live and self._live_updates:
                path, mark, asked = here(request).partition("?")
                request.state.live_path = f"{base_of(request)}/live{path.rstrip('/')}{mark}{asked}"
            response: Response = await in_thread(page.show, self._dashboard, request)
            return response

        return shown

    def _live(self, page: DashboardPage) -> Endpoint:
        async def updates(plain: Request) -> Response:
            request = Exact(plain.scope, plain.receive)
            try:
                await identify(request, self._dashboard, self._access)
            except NotSignedIn:
                return Response(status_code=401)
            except NobodyLetIn:
                return Response(status_code=503)
            request.state.live = True
            return StreamingResponse(
                self._events(page, request), media_type="text/event-stream", headers={"x-accel-buffering": "no"}
            )

        return updates

    async def _events(self, page: DashboardPage, request: Request) -> AsyncIterator[bytes]:
        """A stream of server-sent events: the block `live` of the page when it has changed, and comments in between.

        The comments keep the connection open. The stream ends after a while, and the browser opens a new one. So the
        visitor is identified again, and a server that shuts down does not wait for an open page.
        """
        key = "live", page.path, base_of(request), here(request), request.state.visitor

        def show() -> bytes:
            return bytes(page.show(self._dashboard, request).body)

        last, ends_at_s, ending = b"", time.monotonic() + LIVE_LONGEST_S, self._dashboard.ending
        yield b"retry: 500\n\n"
        while time.monotonic() < ends_at_s and not ending.is_set() and not await request.is_disconnected():
            try:
                fragment = await in_thread(self._dashboard.recent.get, key, LIVE_SECONDS * 0.9, show)
            except (WheelSchedError, OSError) as error:
                logger.warning("dashboard.live_failed: %s: %s", type(error).__name__, error)
                fragment = await in_thread(self._live_error, request, error)
            if fragment != last:
                last = fragment
                yield b"".join(b"data: %b\n" % line for line in fragment.splitlines()) + b"\n"
            else:
                yield b": unchanged\n\n"
            await asyncio.sleep(LIVE_SECONDS)

    def _live_error(self, request: Request, error: Exception) -> bytes:
        values = {"status": int(status_of(error)), "phrase": status_of(error).phrase, "error": str(error)}
        return bytes(self._dashboard.page(request, "error.html", values).body)

    async def _nothing(self, request: Request) -> Response:
        raise NotFound("there is no such page")

    async def _act(self, request: Request) -> Response:
        """Show the preview of an action, or execute it when the form has the token of a preview."""
        visitor: Visitor = request.state.visitor
        action = self._dashboard.actions.get(request.path_params["name"])
        if action is None:
            raise NotFound("there is no such action; nothing was changed")
        allow(action, visitor)
        form = await form_of(request)
        own = {name: form.pop(name, [""])[0] for name in _OWN_FIELDS}
        self._check_origin(request, visitor, own["csrf"])
        lists = {field.name for field in action.fields if field.many}
        arguments = checked(
            action,
            {name: values if name in lists or len(values) > 1 else values[0] for name, values in form.items()},
        )
        back = own["back"] if is_local(own["back"]) else "/"
        if not own["token"]:
            return await in_thread(self._show_preview, request, action, arguments, back, "")
        try:
            result = await in_thread(execute, self._dashboard, action, arguments, visitor, own["token"], own["key"])
        except ChangedMeanwhile as error:
            return await in_thread(self._show_preview, request, action, arguments, back, str(error))
        values = {"action": action, "result": result, "back": result["link"] or back}
        return await in_thread(self._dashboard.page, request, "done.html", values)

    def _show_preview(
        self, request: Request, action: Action, arguments: Arguments, back: str, changed: str
    ) -> Response:
        found, token = preview(self._dashboard, action, arguments, request.state.visitor)
        fields = [
            (name, text)
            for name, value in arguments.items()
            for text in (value if isinstance(value, list) else [value])
        ]
        values = {
            "action": action,
            "preview": found,
            "fields": fields,
            "token": token,
            "key": secrets.token_urlsafe(16),
            "back": back,
            "changed": changed,
        }
        return self._dashboard.page(request, "preview.html", values, 409 if changed else 200)

    def _check_origin(self, request: Request, visitor: Visitor, token: str) -> None:
        """Raise `NotAllowed` unless the form comes from a page of this dashboard."""
        if not is_from_here(request.headers) or not self._dashboard.is_csrf_token(visitor, token):
            raise NotAllowed("this form does not come from this dashboard, or is too old: nothing was changed")

    async def _sign_in(self, sessions: PasswordSessions, request: Request) -> Response:
        request.state.visitor = Visitor("nobody", "read")
        to, wrong = request.query_params.get("to", "/"), False
        to = to if is_local(to) and to.isascii() else "/"
        if request.method == "POST":
            if not is_from_here(request.headers):
                return PlainTextResponse("this form does not come from this dashboard; nothing was done\n", 403)
            try:
                form = await form_of(request)
                name, password = (form.get(field, [""])[0] for field in ("name", "password"))
                found = await in_thread(sessions.check, request, name, password)
            except Rejected as error:
                return PlainTextResponse(f"{error}\n", int(status_of(error)))
            except WheelSchedError as error:
                logger.error("dashboard.nobody_let_in: %s: %s", type(error).__name__, error)
                return PlainTextResponse(f"{NOBODY_LET_IN}\n", 503)
            if found is not None:
                return sessions.sign_in(request, found, base_of(request) + to)
            wrong = True
        values = {"wrong": wrong, "to": to}
        response: Response = await in_thread(
            self._dashboard.page, request, "sign_in.html", values, 401 if wrong else 200
        )
        return response

    async def _sign_out(self, sessions: PasswordSessions, request: Request) -> Response:
        form = await form_of(request)
        self._check_origin(request, request.state.visitor, form.get("csrf", [""])[0])
        response: Response = await in_thread(sessions.sign_out, request, f"{base_of(request)}/sign-in")
        return response

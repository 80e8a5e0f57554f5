"""Makes the dashboard: collects the parts of the installed packages, and builds the ASGI application."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Collection
from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from wheel_sched.config import Loaded
from wheel_sched.dashboard.context import Dashboard, DashboardConfig
from wheel_sched.dashboard.core_part import CORE
from wheel_sched.dashboard.ended_sessions import EndedSessions
from wheel_sched.dashboard.endpoints_api import ApiEndpoints
from wheel_sched.dashboard.endpoints_html import HtmlEndpoints
from wheel_sched.dashboard.lazy_store import LazyStore
from wheel_sched.dashboard.parts import DashboardPart
from wheel_sched.dashboard.passwords import PasswordFile
from wheel_sched.dashboard.process_part import PROCESS
from wheel_sched.dashboard.rights import Authenticate
from wheel_sched.dashboard.security import Guard
from wheel_sched.dashboard.sessions import SESSION_SECONDS, PasswordSessions
from wheel_sched.dashboard.signing import SKEW_SECONDS, TextSigner
from wheel_sched.errors import ConfigError
from wheel_sched.escaping import logger_of
from wheel_sched.extensions import installed, resolve
from wheel_sched.management.missing import package_of
from wheel_sched.store import DelayStore

logger = logger_of(__name__)

ASSETS = Path(__file__).parent / "assets"


class _Assets(StaticFiles):
    """Serves the style sheet, the scripts and the icon, and no other file. Browsers may keep them for an hour."""

    def __init__(self) -> None:
        super().__init__(directory=ASSETS)
        self._names = {path.name for path in ASSETS.iterdir()}

    async def get_response(self, path: str, scope: Scope) -> Response:
        if path not in self._names:
            return PlainTextResponse("there is no such file\n", 404)
        response = await super().get_response(path, scope)
        response.headers["cache-control"] = "public, max-age=3600"
        return response


class DashboardApp:
    """The dashboard as an ASGI application. Mount it, or serve it alone.

    `close` leaves a store open that the caller has opened.

    Args:
        store: an open store, or a `LazyStore`.
        loaded: the settings, also those of the extensions.
        access: who the visitors are: a password file, or a function from a request to a `Visitor` or None.
        config: what the pages show and permit. Defaults to `DashboardConfig()`: read-only, without payloads.
        hosts: the host names under which the dashboard answers. Defaults to None: all.
        secret: signs sessions and previews; all processes that serve this dashboard need the same. Defaults to a random
            one.
        parts: the parts. Defaults to the core's and those of the installed packages.
        live: whether pages update themselves. Defaults to True.
        mounted: whether another application mounts the dashboard. Then the first request starts the background work
            of the parts, unless visitors may only read. Defaults to False: this work starts with the server.
    """

    def __init__(
        self,
        store: DelayStore | LazyStore,
        loaded: Loaded,
        access: Authenticate | PasswordFile,
        *,
        config: DashboardConfig | None = None,
        hosts: Collection[str] | None = None,
        secret: bytes | None = None,
        parts: tuple[DashboardPart, ...] | None = None,
        live: bool = True,
        mounted: bool = False,
    ) -> None:
        signer = TextSigner(secret)
        self.dashboard = Dashboard(
            store, loaded, installed_parts() if parts is None else parts, config or DashboardConfig(), signer
        )
        ended = EndedSessions(lambda: self.dashboard.store, SESSION_SECONDS + SKEW_SECONDS)
        found = PasswordSessions(access, signer, ended) if isinstance(access, PasswordFile) else access
        api, html = ApiEndpoints(self.dashboard, found), HtmlEndpoints(self.dashboard, found, live)
        inner = Starlette(
            routes=[Mount("/assets", _Assets()), *api.routes(), *html.routes()],
            lifespan=self._lifespan,
        )
        self._app: ASGIApp = Guard(inner, hosts)
        self._mounted = mounted and self.dashboard.config.right != "read"
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._mounted and not self._started and scope["type"] == "http":
            self._started = True  # a mounted application gets no ASGI "startup" from the server
            await run_in_threadpool(self.dashboard.start)
        await self._app(scope, receive, send)

    def close(self) -> None:
        """Close what the dashboard has opened: its store, unless the caller opened it, and what the parts opened.

        Idempotent. A server that serves the dashboard alone calls this when the server ends. An application that mounts
        the dashboard may call it: a mounted application gets no ASGI "shutdown" from the server.
        """
        self.dashboard.close()
        self._started = False

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        self._started = True
        self.dashboard.start()
        try:
            yield
        finally:
            await run_in_threadpool(self.close)


def installed_parts() -> tuple[DashboardPart, ...]:
    """The core's parts and those of the installed extensions.

    A part whose framework is not installed is left out: without `celery`, the part of Celery.

    Raises:
        ConfigError: the name in an extension leads to an object that is no `DashboardPart`.
    """
    parts = [CORE, PROCESS]
    for extension in installed().extensions:
        if extension.dashboard:
            try:
                found = resolve(extension.dashboard)
            except ImportError as error:
                package = package_of(error)
                if package is None:
                    raise
                logger.info("dashboard.part_left_out: %s: the package %s is not installed", extension.title, package)
                continue
            if not isinstance(found, DashboardPart):
                raise ConfigError(f"expected {extension.dashboard} to be a DashboardPart, got: {type(found).__name__}")
            parts.append(found)
    return tuple(sorted(parts, key=lambda part: part.place))

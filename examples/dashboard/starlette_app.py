"""The dashboard inside a Starlette application, below /wheel, for the users of a session. It is read-only.

uvicorn starlette_app:app # over redis://localhost:6379/0, or the address in WHEEL_STORE
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from wheel_sched.dashboard import Visitor, dashboard


async def visitor(request: Request) -> Visitor | None:
    """Who sent the request. An application looks its session up here."""
    name = {"secret of ada": "ada"}.get(request.cookies.get("session", ""))
    return None if name is None else Visitor(name, "delete")


wheel = dashboard(os.environ.get("WHEEL_STORE", "redis://localhost:6379/0"), access=visitor)  # at most "read"


@contextlib.asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    yield
    await run_in_threadpool(wheel.close)


def home(_: Request) -> PlainTextResponse:
    return PlainTextResponse("the dashboard is at /wheel/")


app = Starlette(routes=[Route("/", home), Mount("/wheel", wheel)], lifespan=lifespan)

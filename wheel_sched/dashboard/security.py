"""Protects the pages: sets headers in each answer, and checks the host name and where a change comes from.

The Content-Security-Policy allows only scripts, styles and pictures that the dashboard serves. It forbids inline
scripts, inline styles and frames around the page. Caches keep no page, because pages show messages.
"""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wheel_sched.dashboard.addresses import exact

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


class Guard:
    """Middleware around the whole dashboard.

    Args:
        app: the dashboard.
        hosts: the host names under which the dashboard answers. Requests for other names are refused. That stops
            another site whose name points to this address (DNS rebinding). Defaults to None: every name.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str] | None = None) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        if self._hosts is not None and host_of(Headers(scope=scope).get("host", "")) not in self._hosts:
            names = ", ".join(sorted(self._hosts))
            refusal = PlainTextResponse(f"this dashboard answers only as {names}; nothing was done\n", 421)
            await refusal(scope, receive, guarded)
        else:
            await self._app(exact(scope), receive, guarded)


def host_of(host: str) -> str:
    """The name in a Host header, without its port."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def is_from_here(headers: Headers) -> bool:
    """Whether a request for a change comes from a page of this dashboard, by Sec-Fetch-Site and Origin.

    Programs other than browsers send neither header. This check accepts them; each change also needs a CSRF token.
    """
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    if origin is None:
        return True
    scheme, _, host = origin.partition("://")
    return scheme in ("http", "https") and host.lower() == headers.get("host", "").lower()

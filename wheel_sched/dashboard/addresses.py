"""Reads a request's address: the path under which the dashboard is mounted, and the page below that path.

A path may hold a message id, and an id may be any bytes. Decoding keeps each byte. No function reads the Host header,
because links are paths without a host.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote, unquote

from starlette.requests import HTTPConnection
from starlette.routing import Route
from starlette.types import Scope

_SAFE = "/-._~!$&'()*+,;=:@"  # what a path may hold without escapes, RFC 3986


class AnyPath(Route):
    """A route whose `{id:path}` also matches an id with line breaks."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.path_regex = re.compile(self.path_regex.pattern, re.DOTALL)


def base_of(request: HTTPConnection) -> str:
    """The path under which the dashboard is mounted, percent-encoded for a link; "" at the root of a server."""
    return quote(request.scope.get("root_path", "").rstrip("/"), safe=_SAFE, errors="surrogateescape")


def path_of(request: HTTPConnection) -> str:
    """The decoded path of the page, without the path under which the dashboard is mounted."""
    base = request.scope.get("root_path", "").rstrip("/")
    path: str = request.scope["path"]
    return (path[len(base) :] if path.startswith(f"{base}/") else "" if path == base else path) or "/"


def query_of(request: HTTPConnection) -> str:
    """The query with its question mark; "" without one."""
    text = request.scope.get("query_string", b"").decode("latin-1")
    return f"?{quote(text, safe=_SAFE + '?%[]')}" if text else ""


def here(request: HTTPConnection) -> str:
    """Path and query of the page, percent-encoded. `base_of(request) + here(request)` is a link to it."""
    return quote(path_of(request), safe=_SAFE, errors="surrogateescape") + query_of(request)


def is_local(address: str) -> bool:
    """Whether an address leads to a page of this dashboard: to no other host, and without control characters."""
    return address.startswith("/") and not address.startswith("//") and address.isprintable() and "\\" not in address


def exact(scope: Scope) -> Scope:
    """The ASGI scope of a request, with its exact path.

    Two things can make the path wrong, and this function corrects both. Servers replace bytes that are not UTF-8. And
    a proxy may cut off the start of the path, as with FastAPI's `root_path`: the root path is then no prefix of the
    path.
    """
    path, root = scope["path"], scope.get("root_path", "")
    raw = (scope.get("raw_path") or b"").decode("latin-1")
    if unquote(raw) == path:
        path = unquote(raw, errors="surrogateescape")
    outer = scope.get("app_root_path", "")
    if outer and not path.startswith(root) and path.startswith(root.removeprefix(outer)):
        path = outer + path
    return {**scope, "path": path}

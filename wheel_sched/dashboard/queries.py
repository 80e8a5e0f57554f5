"""Reads the query of a request: limit, cursor, numbers. A wrong value is an error, and never a silent default."""

from __future__ import annotations

from starlette.requests import Request

from wheel_sched.errors import Rejected

SHOWN = 50
MOST = 200


def limit_of(request: Request, default: int = SHOWN) -> int:
    """The parameter `limit`, from 1 to 200.

    Raises:
        Rejected: the parameter is no number from 1 to 200.
    """
    return number_of(request, "limit", default, least=1, most=MOST)


def number_of(request: Request, name: str, default: int, *, least: int, most: int) -> int:
    """A whole number of the query.

    Raises:
        Rejected: the value is no whole number from `least` to `most`.
    """
    text = request.query_params.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 16 and least <= int(text) <= most):
        raise Rejected(f"expected {name} to be a whole number from {least:,} to {most:,}, got: {text[:40]!r}")
    return int(text)


def cursor_of(request: Request) -> str | None:
    """The parameter `cursor`; None for the first page."""
    return request.query_params.get("cursor") or None

"""Who may do what: rights, visitors, and the ways to find out who a visitor is.

There are three rights, and each includes those before it: "read" sees everything, "operate" also changes what can be
undone (retry now, pause, hold), "delete" also removes messages and jobs for good.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, get_args

from starlette.requests import Request

from wheel_sched.errors import ConfigError

Right = Literal["read", "operate", "delete"]
RIGHTS: tuple[Right, ...] = get_args(Right)


@dataclass(frozen=True, slots=True)
class Visitor:
    """A person or program that uses the dashboard.

    Args:
        name: the pages show it, and the audit log keeps it.
        right: the greatest right that the visitor has.
    """

    name: str
    right: Right

    def __post_init__(self) -> None:
        if self.right not in RIGHTS:
            raise ConfigError(f"expected a right to be read, operate or delete, got: {self.right!r}")

    def may(self, right: Right) -> bool:
        return RIGHTS.index(right) <= RIGHTS.index(self.right)

    def limited(self, right: Right) -> Visitor:
        """The visitor with at most this right."""
        return self if RIGHTS.index(self.right) <= RIGHTS.index(right) else Visitor(self.name, right)


Authenticate = Callable[[Request], Visitor | Awaitable[Visitor | None] | None]
"""Finds out who sent a request; returns None for an unknown sender. May be async. Must not block the event loop."""


def everyone(right: Right, name: str = "local") -> Authenticate:
    """Give every request this right. Use it only for a dashboard that nobody else can reach."""
    visitor = Visitor(name, right)
    return lambda _: visitor

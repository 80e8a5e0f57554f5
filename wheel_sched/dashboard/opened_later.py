"""A source of data, such as a jobstore, whose namespace may not exist yet. A page opens it and never creates it."""

from __future__ import annotations

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar, Generic, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from wheel_sched.dashboard.parts import NotFound
from wheel_sched.errors import NotDone

T = TypeVar("T")
Opened = TypeVar("Opened", bound="OpenedLater[Any]")
Dashboard = Any

_ASK_AGAIN_S = 3.0  # the pause before an absent namespace is looked for again


class NotThereYet(NotFound):
    """The namespace of a source does not exist yet. The message says what to start."""


class OpenedLater(ABC, Generic[T]):
    """Opens a source of data once, and keeps it open until `close`. Thread-safe.

    A subclass names in `absent` the error that `get` raises while the namespace does not exist.
    """

    absent: ClassVar[type[NotThereYet]] = NotThereYet

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stack = contextlib.ExitStack()
        self._found: T | None = None
        self._why_absent, self._absent_until_s = "", 0.0

    @abstractmethod
    def _open(self, stack: contextlib.ExitStack) -> T:
        """Open the source, and push onto the stack what must be closed.

        Raises:
            NotDone: there is no such namespace; it was not created.
        """

    def get(self) -> T:
        """The open source. The first call opens it.

        Raises:
            NotThereYet: there is no such namespace; it was not created.
            StoreError: the store does not answer.
        """
        with self._lock:
            if self._found is None:
                if time.monotonic() < self._absent_until_s:
                    raise self.absent(self._why_absent)
                try:
                    self._found = self._open(self._stack)
                except NotDone as error:
                    self._why_absent, self._absent_until_s = str(error), time.monotonic() + _ASK_AGAIN_S
                    raise self.absent(self._why_absent) from error
            return self._found

    def close(self) -> None:
        """Close the source. Idempotent."""
        with self._lock:
            self._found = None
            self._stack.close()


def page_with(
    opened_of: Callable[[Dashboard], Opened], absent_template: str
) -> Callable[[Callable[[Dashboard, Request, Opened], Response]], Callable[[Dashboard, Request], Response]]:
    """Turn functions that show an open source into pages. While the source does not exist, a page says what to start.

    Args:
        opened_of: finds the source that the pages of a dashboard share.
        absent_template: rendered with `why` while the namespace of the source does not exist.
    """

    def made(show: Callable[[Dashboard, Request, Opened], Response]) -> Callable[[Dashboard, Request], Response]:
        @wraps(show)
        def page(dashboard: Dashboard, request: Request) -> Response:
            opened = opened_of(dashboard)
            try:
                opened.get()
            except NotThereYet as error:
                absent: Response = dashboard.page(request, absent_template, {"why": str(error)})
                return absent
            return show(dashboard, request, opened)

        return page

    return made

"""Keeps errors of the tracing code away from messages: they are logged once, and the message goes on without its span.

A tracing library runs code of others: propagators, samplers, span processors. Any of them can raise. An error that the
message's own code raises inside a span is never caught here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

from wheel_sched.escaping import logger_of

logger = logger_of("retry_topic.tracing")

T = TypeVar("T")
U = TypeVar("U")


class SpanGuard:
    """Runs tracing code. Its first error is logged as a warning with a traceback, later ones at DEBUG.

    Several threads may use one guard; then the warning may come once per thread.
    """

    def __init__(self) -> None:
        self._warned = False

    def __call__(self, call: Callable[[], T], instead: U) -> T | U:
        """The result of `call`; `instead` if it raises an `Exception`."""
        try:
            return call()
        except Exception as error:
            self._report(error)
            return instead

    @contextmanager
    def around(self, make: Callable[[], AbstractContextManager[T]], instead: T) -> Iterator[T]:
        """A `with` block inside the one that `make` returns. Yields that block's value; `instead` if it cannot begin.

        The block of `make` sees an exception of the message's code, which is raised again here.
        """
        begun = self(lambda: _begun(make()), None)
        if begun is None:
            yield instead
            return
        span, value = begun
        try:
            yield value
        except BaseException as error:
            raised = error
            self(lambda: span.__exit__(type(raised), raised, raised.__traceback__), None)
            raise
        self(lambda: span.__exit__(None, None, None), None)

    def _report(self, error: Exception) -> None:
        if self._warned:
            logger.debug("tracing.failed: %r", error)
            return
        self._warned = True
        logger.warning(
            "tracing.failed: messages go on, spans or links may be missing; later errors are at DEBUG", exc_info=error
        )


def _begun(span: AbstractContextManager[T]) -> tuple[AbstractContextManager[T], T]:
    return span, span.__enter__()

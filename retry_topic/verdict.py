"""Verdicts: the values that a handler returns to decide about its message.

    def handle(message):
        if busy():
            return Retry(after=30, reason="warehouse is counting")
        ...                                   # returning nothing means Ack

The handler needs no exception to ask for a retry. An exception that it raises is a failure, and the policy decides.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from wheel_sched.errors import Rejected


@dataclass(frozen=True, slots=True)
class Ack:
    """Done: the message does not come back. Returning None means the same."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Deliver the message again. This counts as an attempt, and the policy's caps hold.

    Args:
        after: the delay in seconds or as a timedelta, at most the policy's `retry_after_max`. Defaults to None: the
            policy's delay.
        reason: for people. Defaults to "".
    """

    after: float | timedelta | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        after = self.after
        if isinstance(after, timedelta):
            valid = after >= timedelta(0)
        else:
            number = isinstance(after, int | float) and not isinstance(after, bool)
            valid = after is None or (number and math.isfinite(after) and after >= 0)
        if not valid:
            raise Rejected(f"expected after to be seconds or a timedelta, not negative, got: {after!r}")

    @property
    def after_ms(self) -> int | None:
        """The delay in whole milliseconds, rounded up: a retry is never early."""
        if self.after is None:
            return None
        if isinstance(self.after, timedelta):
            return -(-self.after // _MS)
        # To the microsecond first: 0.001 * 3 is 0.003 and a hair, and must not become 4 ms.
        return math.ceil(round(self.after * 1_000, 3))


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Give the message up immediately, and keep it as a dead letter.

    Args:
        reason: for people; shown with the dead letter.
    """

    reason: str


Verdict = Ack | Retry | DeadLetter

_MS = timedelta(milliseconds=1)


def verdict_of(returned: Any) -> Verdict:
    """The verdict in a handler's return value; None means Ack.

    Raises:
        Rejected: the value is not a verdict. Nothing is guessed: True or 0 could mean success or failure.
    """
    if returned is None:
        return Ack()
    if isinstance(returned, Ack | Retry | DeadLetter):
        return returned
    hint = ""
    if isinstance(returned, type) and issubclass(returned, Ack | Retry | DeadLetter):
        hint = f"; did you mean {returned.__name__}(...)?"
    elif inspect.isawaitable(returned):
        hint = "; the handler is async and was not awaited"
        if inspect.iscoroutine(returned):
            returned.close()  # it will never run: avoid Python's second, vaguer warning
    raise Rejected(
        f"expected a handler to return None, Ack(), Retry(...) or DeadLetter(...), got: {repr(returned)[:200]}{hint}"
    )

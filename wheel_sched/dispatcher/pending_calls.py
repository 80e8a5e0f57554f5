"""Calls that the owner has sent to the store, and their replies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from wheel_sched.dispatcher.publisher import Batch
from wheel_sched.errors import InDoubt, WheelSchedError
from wheel_sched.escaping import logger_of
from wheel_sched.store.core.call import Call, CompletedCalls, SentCalls
from wheel_sched.store.core.delay_store import DelayStore

logger = logger_of("wheel_sched.dispatcher")

Request = tuple[Call[Any], Batch | None]  # a call, and the batch that it settles


class Reply(NamedTuple):
    """A call, the batch that it settles, and its answer or error."""

    call: Call[Any]
    batch: Batch | None
    answer: Any


class PendingCalls(NamedTuple):
    """Calls that were sent to the store.

    `sent_us`: when they were sent, in local time. `ahead`: they were sent in an earlier step. A marker may have come
    since then, and the answer must not delay the look that the marker asked for.
    """

    requests: Sequence[Request]
    begun: SentCalls
    sent_us: int
    ahead: bool

    def replies(self) -> list[Reply]:
        """Wait for the answers. When the round trip fails, the answer of each call is the error."""
        try:
            answers = self.begun.answers()
        except WheelSchedError as error:
            answers = [error] * len(self.requests)
        return [Reply(*request, _usable(answer)) for request, answer in zip(self.requests, answers, strict=True)]


def _usable(answer: Any) -> Any:
    """The answer. For a write that was executed but not confirmed: the server's answer instead of the error.

    A dispatcher that waited for lost replicas would release nothing any more. If the server is lost now, settled items
    are released again when their lease ends.
    """
    if not isinstance(answer, InDoubt) or answer.answer is None:
        return answer
    logger.warning("dispatcher.unconfirmed: the dispatcher continues; settled items may be released again: %s", answer)
    return answer.answer


def send(store: DelayStore, requests: Sequence[Request], sent_us: int, *, ahead: bool = False) -> PendingCalls:
    """Send calls, without waiting for their replies."""
    try:
        begun = store.begin([call for call, _ in requests])
    except WheelSchedError as error:
        begun = CompletedCalls([error] * len(requests))
    return PendingCalls(requests, begun, sent_us, ahead)

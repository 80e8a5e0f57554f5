"""Calls that the owner has sent to the store, and the handling of their replies one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from wheel_sched.dispatcher.publisher import Batch
from wheel_sched.errors import InDoubt, WheelSchedError
from wheel_sched.escaping import logger_of
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.delay_store import DelayStore
from wheel_sched.store.core.pending import CompletedCalls, SentCalls

logger = logger_of("wheel_sched.dispatcher")

Request = tuple[Call[Any], Batch | None]  # a call, and the batch that it settles


class Reply(NamedTuple):
    """A call, the batch that it settles, and its answer or error."""

    call: Call[Any]
    batch: Batch | None
    answer: Any


class PendingCalls(NamedTuple):
    """Calls on their way to the store.

    `sent_us` is when they were sent, in local time. `ahead`: in an earlier step, so that a marker may have been heard
    since, and the answer must not put off what the marker asked for.
    """

    requests: Sequence[Request]
    begun: SentCalls
    sent_us: int
    ahead: bool

    def replies(self) -> list[Reply]:
        """Wait for the answers; when there are none, each call's answer is the error."""
        try:
            answers = self.begun.answers()
        except WheelSchedError as error:
            answers = [error] * len(self.requests)
        return [Reply(*request, _usable(answer)) for request, answer in zip(self.requests, answers, strict=True)]


def _usable(answer: Any) -> Any:
    """The answer; of a write that was executed and not confirmed, what the server said.

    Waiting for replicas that are gone would end all releasing. If the server is lost now, settled items are released
    again when their lease ends.
    """
    if not isinstance(answer, InDoubt) or answer.answer is None:
        return answer
    logger.warning("dispatcher.unconfirmed: it goes on; settled items may be released again: %s", answer)
    return answer.answer


def send(store: DelayStore, requests: Sequence[Request], sent_us: int, *, ahead: bool = False) -> PendingCalls:
    """Send calls and wait for nothing."""
    try:
        begun = store.begin([call for call, _ in requests])
    except WheelSchedError as error:
        begun = CompletedCalls([error] * len(requests))
    return PendingCalls(requests, begun, sent_us, ahead)

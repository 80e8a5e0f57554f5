"""Calls that were sent to the store, and what their replies tell about the store's clock.

The owner sends calls with `send` and reads the replies later. Each reply has the store's time, from which `ServerTime`
estimates the store's clock. After a failure, `FailurePause` says how long the owner sends nothing. Only the owner's
thread makes calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from wheel_sched.dispatcher.publisher import Batch
from wheel_sched.errors import InDoubt, StoreError, WheelSchedError
from wheel_sched.escaping import logger_of
from wheel_sched.store.core.call import Call, CompletedCalls, SentCalls
from wheel_sched.store.core.delay_store import DelayStore

logger = logger_of("wheel_sched.dispatcher")

JUMP_US = 5_000_000
_AGING_US_PER_S = 200  # clocks drift against each other by up to 100 ppm; an old sample loses weight at twice this rate

Request = tuple[Call[Any], Batch | None]  # a call, and the batch that it settles


class Reply(NamedTuple):
    """A call, the batch that it settles (None for other calls), and its answer or error."""

    call: Call[Any]
    batch: Batch | None
    answer: Any


class PendingCalls(NamedTuple):
    """Calls that were sent to the store.

    `sent_us`: when they were sent, in local time. `ahead`: they were sent in an earlier step. A marker may have
    arrived since then. So the answers must not replace the shard's alarm by a later one.
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
    """Return the answer of a call. A write that was executed but not confirmed counts as answered.

    A dispatcher that waited for lost replicas would release no more items. If the server is lost before it confirms,
    settled items are released again when their lease ends.
    """
    if not isinstance(answer, InDoubt) or answer.answer is None:
        return answer
    logger.warning("dispatcher.unconfirmed: the dispatcher continues; settled items may be released again: %s", answer)
    return answer.answer


def send(store: DelayStore, requests: Sequence[Request], sent_us: int, *, ahead: bool = False) -> PendingCalls:
    """Send calls, without waiting for their replies. `sent_us` and `ahead`: see `PendingCalls`."""
    try:
        begun = store.begin([call for call, _ in requests])
    except WheelSchedError as error:
        begun = CompletedCalls([error] * len(requests))
    return PendingCalls(requests, begun, sent_us, ahead)


class FailurePause:
    """The time in which the owner only extends leases, because the store did not answer or a step failed.

    The pause begins with 100 ms. It doubles with each failure in a row, up to `most_ms` and at most 5 s. A drain
    ignores it.

    Attributes:
        failures: the failures since the store last answered.
        until_us: when the pause ends, in microseconds of local monotonic time.
    """

    __slots__ = ("_most_ms", "failures", "until_us")

    def __init__(self, most_ms: int) -> None:
        self._most_ms = most_ms
        self.failures = 0
        self.until_us = 0

    def failed(self, error: BaseException, local_us: int) -> None:
        """Begin a pause. Of several failures of the store in a row, only the first is logged; other errors always."""
        self.failures += 1
        if not isinstance(error, StoreError):
            logger.error("dispatcher.step_failed: the dispatcher continues", exc_info=error)
        elif self.failures == 1:
            logger.warning("dispatcher.store_away: %s", error)
        self.until_us = local_us + 1_000 * min(50 * 2 ** min(self.failures, 10), self._most_ms, 5_000)

    def answered(self) -> None:
        """Note that the store has answered. The count of failures in a row begins again."""
        self.failures = 0


class ServerTime:
    """An estimate of the store's clock from local monotonic time, in microseconds.

    When a reply comes, the estimate is a lower bound: a claim that is sent then is not too early. Let a be the local
    time of a call, b the local time of its reply, and s the server's time in the reply. Then server minus local time
    lies in [s - b, s - a]. The greatest lower end among recent replies is the offset. The estimate, `local + offset`,
    is behind the server by about the travel time of one reply.

    Between replies the estimate follows the local clock, which may drift from the server's by 100 ppm: by 6 ms in a
    minute without replies. The next claim may be too early by this drift. A server that uses its own clock then returns
    no items.
    """

    __slots__ = ("_at_us", "_offset_us")

    def __init__(self) -> None:
        self._offset_us: int | None = None
        self._at_us = 0

    @property
    def known(self) -> bool:
        return self._offset_us is not None

    def observe(self, server_us: int, asked_us: int, answered_us: int) -> int:
        """Correct the estimate by a reply. Returns by how many us the server's clock has jumped; negative is back.

        A jump of at most 5 s counts as none: the result is 0.
        """
        low, high = server_us - answered_us, server_us - asked_us + 1
        if self._offset_us is None:
            self._offset_us, self._at_us = low, answered_us
            return 0
        # rounded down: replies that come a millisecond apart must not hide the drift between the clocks
        aged = self._offset_us - -(-(answered_us - self._at_us) * _AGING_US_PER_S // 1_000_000)
        if low - aged > JUMP_US or aged - high > JUMP_US:
            step = low - self._offset_us
            self._offset_us, self._at_us = low, answered_us
            return step
        self._offset_us, self._at_us = min(max(aged, low), high), answered_us
        return 0

    def now_us(self, local_us: int) -> int:
        """Estimate the server's time at a local instant.

        Raises:
            RuntimeError: no reply was observed yet.
        """
        if self._offset_us is None:
            raise RuntimeError("no reply of the store has been seen yet")
        return local_us + self._offset_us

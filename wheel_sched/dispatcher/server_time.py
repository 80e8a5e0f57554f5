"""An estimate of the store's clock: a lower bound, so that no item is ever claimed too early.

Let a be the local time of a call, b the local time of its reply, and s the server time in the reply. Then server minus
local time lies in [s - b, s - a]. The greatest recent lower end is the offset: `local + offset` never runs ahead of the
server, and lags by about the way back of one reply. Between replies the estimate runs with the local clock. After a
minute without replies, clocks that drift by 100 ppm are 6 ms apart; a server that uses its own clock then answers an
early claim with nothing.
A step of more than 5 s is a jump: the caller re-reads the window and records it.
"""

from __future__ import annotations

JUMP_US = 5_000_000
_AGING_US_PER_S = 200  # clocks drift against each other by up to 100 ppm; an old sample loses weight at twice this rate


class ServerTime:
    """Server time from local monotonic time, in microseconds. One owner."""

    __slots__ = ("_at_us", "_offset_us")

    def __init__(self) -> None:
        self._offset_us: int | None = None
        self._at_us = 0

    @property
    def known(self) -> bool:
        return self._offset_us is not None

    def observe(self, server_us: int, asked_us: int, answered_us: int) -> int:
        """Take a sample; the step in us when the server's clock jumped (signed), else 0."""
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
        """Server time at a local instant; never ahead of the server."""
        if self._offset_us is None:
            raise RuntimeError("no reply of the store has been seen yet")
        return local_us + self._offset_us

"""The store's clock as seen from here: a lower bound, so that nothing is ever claimed a moment too early.

A reply that carries server time s and was asked for between local instants a and b says that server minus local lies
in [s - b, s - a]. The greatest recent lower end is the offset: `local + offset` never runs ahead of the server, and
lags by about one reply's way back. Between replies it runs at the local clock's pace: after a silent minute clocks
that drift by 100 ppm are 6 ms apart, and a server that judges by its own clock answers an empty claim.
A step of more than 5 s is a jump: the caller re-reads the window and records it.
"""

from __future__ import annotations

JUMP_US = 5_000_000
_AGING_US_PER_S = 200  # clocks drift against each other by up to 100 ppm; twice that gives an old sample less weight


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
        # rounded towards the past: replies a millisecond apart must not hide the drift between them
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

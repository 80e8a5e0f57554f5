"""What this integration raises; everything else is of `wheel_sched.errors`."""

from __future__ import annotations

from kombu.exceptions import OperationalError

from wheel_sched.errors import WheelSchedError


class HoldRefused(WheelSchedError, OperationalError):
    """The delay store is away and the app refuses instead of sending the stock way: nothing was sent.

    It is kombu's `OperationalError` too, which callers of `apply_async` catch for a broker that is away.
    """

    transient = True

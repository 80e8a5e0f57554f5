"""Calls that are made again while store or cluster are away or still starting: Spark repeats a task, but at once, and
gives the query up after four times.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from wheel_sched.errors import BrokerError, StoreError

T = TypeVar("T")

_PATIENCE_S = 30.0
_PAUSE_S = 0.2


def insist(call: Callable[[], T]) -> T:
    """Do a call, again and again for half a minute while it fails for want of the other side.

    Raises:
        StoreError, BrokerError: it still fails, or would fail for ever.
    """
    until_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return call()
        except (StoreError, BrokerError) as error:
            if not error.transient or time.monotonic() >= until_s:
                raise
        time.sleep(_PAUSE_S)

"""Repeats calls while the store or the cluster is not available.

Spark repeats a failed task too, but without a pause, and gives up the query after four failures.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from wheel_sched.errors import BrokerError, StoreError

T = TypeVar("T")

_LIMIT_S = 30.0
_PAUSE_S = 0.2


def retry_until_available(call: Callable[[], T]) -> T:
    """Repeat a call for up to 30 s while it fails with a transient error.

    Raises:
        StoreError, BrokerError: the error is not transient, or the call still fails after 30 s.
    """
    until_s = time.monotonic() + _LIMIT_S
    while True:
        try:
            return call()
        except (StoreError, BrokerError) as error:
            if not error.transient or time.monotonic() >= until_s:
                raise
        time.sleep(_PAUSE_S)

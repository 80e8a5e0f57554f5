"""Calls into librdkafka that are waited for only so long.

Some of them block inside the library for longer than they were told to, now and then for ever (committing a transaction
after the broker stood still longer than a session). Such a call is made in a thread that can be left behind: what
became of it is found out as after a death, by asking the broker. The threads are daemons and end with the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_GRACE_S = 2.0  # beyond the call's own timeout


class LeftBehind(Exception):
    """The call has not returned in time: whether it was done is not known."""


def attended(call: Callable[[], T], timeout_s: float, name: str) -> T:
    """What `call` answers or raises.

    Args:
        call: runs in a thread of its own; it may still run, and have its effect, after this has raised.
        timeout_s: the call's own timeout.
        name: of the thread.

    Raises:
        LeftBehind: it has not returned two seconds after its timeout.
    """
    answer: list[T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            answer.append(call())
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name=f"kafka-{name}", daemon=True)
    thread.start()
    thread.join(timeout_s + _GRACE_S)
    if thread.is_alive():
        raise LeftBehind(f"{name} has not returned within {timeout_s + _GRACE_S:g} s")
    if raised:
        raise raised[0]
    return answer[0]

"""Calls into librdkafka that are waited for only so long.

Some of them block inside the library for longer than they were told to, now and then for ever (committing a transaction
after the broker stood still longer than a session). Such a call is made in a thread that can be left behind: what
became of it is found out as after a death, by asking the broker. The threads are daemons and end with the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sized
from typing import Generic, TypeVar

T = TypeVar("T")

_GRACE_S = 2.0  # beyond the call's own timeout


class LeftBehind(Exception):
    """The call has not returned in time: whether it was done is not known."""


class Attended(Generic[T]):
    """A call that runs in a thread of its own; it may still run, and have its effect, after nobody waits for it.

    Args:
        call: what is called.
        name: of the thread.
    """

    def __init__(self, call: Callable[[], T], name: str) -> None:
        self._call = call
        self._name = name
        self._answer: list[T] = []
        self._raised: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, name=f"kafka-{name}", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float, steps: Sized = ()) -> T:
        """What the call answers or raises.

        Args:
            timeout_s: the call's own timeout; of each of its steps, when it has several.
            steps: grows by one with each step that the call begins. Defaults to none.

        Raises:
            LeftBehind: it has neither returned nor begun another step two seconds after its timeout.
        """
        begun = -1
        while self._thread.is_alive():
            if begun == len(steps):
                raise LeftBehind(f"{self._name} has not returned within {timeout_s + _GRACE_S:g} s")
            begun = len(steps)
            self._thread.join(timeout_s + _GRACE_S)
        if self._raised:
            raise self._raised[0]
        return self._answer[0]

    def _run(self) -> None:
        try:
            self._answer.append(self._call())
        except BaseException as error:
            self._raised.append(error)


def attended(call: Callable[[], T], timeout_s: float, name: str) -> T:
    """What `call` answers or raises, see `Attended`.

    Raises:
        LeftBehind: it has not returned two seconds after its timeout.
    """
    return Attended(call, name).wait(timeout_s)

"""Calls into librdkafka with a deadline.

Some calls can block longer than their own timeout, even for ever (for example a commit of a transaction after the
broker stood still for longer than a session). So such a call runs in its own thread, and the caller stops waiting at
the deadline. Then the caller asks the broker whether the call took effect, as after a crash. The threads are daemons
and end with the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sized
from typing import Generic, TypeVar

T = TypeVar("T")

_GRACE_S = 2.0  # after the call's own timeout


class DeadlinePassed(Exception):
    """The call did not return in time. Whether it took effect is not known."""


class DeadlineCall(Generic[T]):
    """A call in its own thread. It may still run and take effect after its caller has stopped waiting.

    Args:
        call: the function to call.
        name: the name of the call, for its thread and for errors.
    """

    def __init__(self, call: Callable[[], T], name: str) -> None:
        self._call = call
        self._name = name
        self._answer: list[T] = []
        self._raised: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, name=f"kafka-{name}", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float, steps: Sized = ()) -> T:
        """The result of the call, or the exception that it raised.

        Args:
            timeout_s: the call's own timeout. For a call of several steps: the timeout of each step.
            steps: grows by one with each step that the call begins. Defaults to none.

        Raises:
            DeadlinePassed: two seconds after the timeout the call has neither returned nor begun another step.
        """
        begun = -1
        while self._thread.is_alive():
            if begun == len(steps):
                raise DeadlinePassed(f"{self._name} has not returned within {timeout_s + _GRACE_S:g} s")
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


def call_with_deadline(call: Callable[[], T], timeout_s: float, name: str) -> T:
    """The result of `call`, or the exception that it raised; see `DeadlineCall`.

    Raises:
        DeadlinePassed: `call` has not returned two seconds after its timeout.
    """
    return DeadlineCall(call, name).wait(timeout_s)

"""What happens to timers with threads when their process forks or ends.

A child has none of its parent's threads, and locks as they were at that instant; the end of the interpreter stops
daemon threads in the midst of whatever they do. Both are told to every timer that is alive.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401  # hooks run in reverse: this one's, which ends pools, must run after ours
import os
import threading
import weakref
from typing import Protocol


class Living(Protocol):
    """A timer that wants to be told."""

    def after_fork_in_child(self) -> None: ...

    def at_exit(self) -> None: ...


_living: weakref.WeakSet[Living] = weakref.WeakSet()


def watch(timer: Living) -> None:
    """Tell `timer` about forks and the end; it is not kept alive by that."""
    _living.add(timer)


def _after_fork_in_child() -> None:
    for timer in list(_living):
        timer.after_fork_in_child()


def _at_exit() -> None:
    for timer in list(_living):
        timer.at_exit()


if hasattr(os, "register_at_fork"):  # absent on Windows, which does not fork
    os.register_at_fork(after_in_child=_after_fork_in_child)
# The hook of `concurrent.futures`, private but unchanged since 3.9: `atexit` alone runs when pools are down already.
getattr(threading, "_register_atexit", atexit.register)(_at_exit)

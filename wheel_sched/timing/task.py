"""Kafka's `TimerTask`: what to run and after how long, as an object that can be added again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(eq=False, slots=True)
class TimerTask:
    """Given to `add`. One task waits once: adding it again moves it.

    Args:
        delay_ms: as `schedule` takes it; may be changed before the task is added again.
        callback: what to call.
        args: with what. Defaults to nothing.
    """

    delay_ms: float
    callback: Callable[..., Any]
    args: tuple[Any, ...] = ()

"""Recurring timers: when the next run is due, as a pure function of the last run.

A fixed rate counts from deadline to deadline, so lateness does not add up. A fixed delay counts from the end of a run.
Runs of one timer never overlap: the next run is armed when the last has ended. `CatchUp` says what happens to the runs
of a fixed rate whose time passed meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from wheel_sched.errors import ConfigError


class CatchUp(Enum):
    """What to do about runs whose time has passed.

    ALL: run each of them at once, one after the other. ONCE: run once at once for all of them, then go on at the fixed
    rate. SKIP: forget them and wait for the next regular run.
    """

    ALL = "all"
    ONCE = "once"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Every:
    """How a timer recurs.

    Args:
        interval_ms: from deadline to deadline, or from the end of a run to the next; an int of at least 1.
        fixed: "rate" or "delay". Defaults to "rate".
        catch_up: for "rate", what happens to missed runs. Defaults to `CatchUp.ONCE`.

    Raises:
        ConfigError: all that is wrong with the arguments.
    """

    interval_ms: int
    fixed: Literal["rate", "delay"] = "rate"
    catch_up: CatchUp = CatchUp.ONCE

    def __post_init__(self) -> None:
        problems = []
        if type(self.interval_ms) is not int or self.interval_ms < 1:
            problems.append(
                f"expected interval_ms to be an int of at least 1 (milliseconds), got: {self.interval_ms!r}"
            )
        if self.fixed not in ("rate", "delay"):
            problems.append(f"expected fixed to be 'rate' or 'delay', got: {self.fixed!r}")
        if not isinstance(self.catch_up, CatchUp):
            problems.append(f"expected catch_up to be a member of CatchUp, got: {self.catch_up!r}")
        if problems:
            raise ConfigError(problems)

    def next_ms(self, deadline_ms: int, now_ms: int) -> int:
        """The deadline that follows `deadline_ms` when its run ended at `now_ms`; may have passed (ALL, ONCE)."""
        if self.fixed == "delay":
            return now_ms + self.interval_ms
        missed = max(now_ms - deadline_ms, 0) // self.interval_ms
        if self.catch_up is CatchUp.ALL or not missed:
            return deadline_ms + self.interval_ms
        return deadline_ms + (missed + (self.catch_up is CatchUp.SKIP)) * self.interval_ms

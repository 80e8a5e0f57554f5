"""Values of rate limits: limits, admitted numbers, flows of topics and circuits of destinations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

WhyNot = Literal["rate", "budget", "open", "half-open", "-"]


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a topic's releases; 0 turns off a limit.

    Args:
        interval_us: at most one release in this many microseconds.
        burst: how many releases may come at once after a pause; 0 = as many as one second allows.
        share_ppm: releases per million first attempts.
        least_mhz: releases per 1,000 seconds that are allowed without any first attempt.
        trip_ppm: failures per million attempts of a destination that open its circuit.
        of: number of results that the circuit needs before it can open.
        within_ms: the window in which results are counted.
        open_ms: how long the circuit stays open, and how long it waits for the result of a probe.
    """

    interval_us: int = 0
    burst: int = 0
    share_ppm: int = 0
    least_mhz: int = 0
    trip_ppm: int = 0
    of: int = 0
    within_ms: int = 0
    open_ms: int = 0


class Admitted(NamedTuple):
    """The answer for a destination: `granted` items may go now, the others from `first_us` on, `step_us` apart."""

    granted: int
    first_us: int
    step_us: int
    why: WhyNot


class Flow(NamedTuple):
    """The flow of a topic (`destination` None) or the circuit of a destination, as numbers and a state."""

    topic: str
    destination: str | None
    state: str
    numbers: dict[str, int]

"""Values of rate limits: limits, what is admitted, flows of topics and circuits of destinations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

WhyNot = Literal["rate", "budget", "open", "half-open", "-"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What holds back a topic's releases; 0 lifts each part.

    Args:
        interval_us: one release every so many microseconds.
        burst: so many at once after a pause; 0 = a second's worth.
        share_ppm: releases per million first attempts.
        least_mhz: releases per 1,000 seconds that are allowed without any first attempt.
        trip_ppm: failures per million attempts of a destination that open its circuit.
        of: results there must be before it opens.
        within_ms: over which they are counted.
        open_ms: how long it stays open, and a probe is waited for.
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
    """Of what a destination wanted, `granted` may go now; the rest from `first_us` on, `step_us` apart."""

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

"""The model of processes that share one server: their rate grows with their number until a processor is full."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from benchmarks.growth.case import Models, Points
from benchmarks.growth.model import Formula, Model

MICROSECONDS = 1_000_000


@dataclass(frozen=True, slots=True)
class SharedServerModel:
    """What one process does alone, and what a message costs.

    Args:
        alone_per_s: messages a second of one process.
        process_us: processor time of a process for a message.
        server_us: processor time of the server for a message.
    """

    alone_per_s: float
    process_us: float
    server_us: float

    @property
    def server_per_s(self) -> float:
        """The rate at which the server's one processor is full."""
        return MICROSECONDS / self.server_us

    def here_per_s(self) -> float:
        """The rate at which all processors of this machine are full."""
        return (os.cpu_count() or 1) * MICROSECONDS / (self.process_us + self.server_us)

    def here(self) -> Formula:
        """The rate of n processes that share this machine's processors with their server."""
        limit = min(self.here_per_s(), self.server_per_s)
        text = f"min({self.alone_per_s:.0f} n, {self.here_per_s():.0f} machine, {self.server_per_s:.0f} server)"
        return Formula(text, lambda size: min(size * self.alone_per_s, limit))

    def apart(self) -> Formula:
        """The rate of n processes if each of them has a processor of its own, and so has the server."""
        text = f"min({self.alone_per_s:.0f} n, {self.server_per_s:.0f} server)"
        return Formula(text, lambda size: min(size * self.alone_per_s, self.server_per_s))


def shared_server_model_of(points: Points) -> SharedServerModel:
    """Compute the model's constants from the measured values of `rate_per_s`, `process_us` and `server_us`."""
    rates = points["rate_per_s"]
    fewest = min(rates)
    return SharedServerModel(rates[fewest] / fewest, _typical(points["process_us"]), _typical(points["server_us"]))


def rates_of(points: Points) -> Models:
    """The models of the rate: if all processes share this machine, and if each has a processor of its own."""
    shared = shared_server_model_of(points)
    return {"rate_per_s": shared.here(), "rate_apart_per_s": shared.apart()}


def _typical(values: Mapping[int, float]) -> float:
    return median(values.values())


def full_from(rate: Model) -> int | None:
    """The least number of processes that have the greatest rate; None: more than a thousand."""
    greatest = rate.at(10**6)
    return next((count for count in range(1, 1_001) if rate.at(count) >= greatest), None)

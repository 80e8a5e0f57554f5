"""Flow control as data: how fast retries of a topic are released, and when retries to a failing destination stop.

A message that is held back waits in the store with a later due time. Waiting is not an attempt, and no message is lost.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from retry_topic.policy.checks import check_duration, check_integer
from wheel_sched.duration import UNITS_MS, format_duration
from wheel_sched.errors import ConfigError

_RATE = re.compile(r"([0-9]{1,7})/(s|m|h)")
_SHARE = re.compile(r"([0-9]{1,3})%")
_MOST = 1_000_000  # a second; no server publishes more, so a larger number is a typing error


@dataclass(frozen=True, slots=True)
class Rate:
    """A number of messages per unit of time.

    Args:
        count: 1 to 1,000,000.
        unit: "s", "m" or "h".
    """

    count: int
    unit: str = "s"

    def __post_init__(self) -> None:
        problems = check_integer("rate", self.count, 1, _MOST)
        if self.unit not in ("s", "m", "h"):
            problems.append(f"expected rate to be per s, m or h, got: {self.unit!r}")
        if problems:
            raise ConfigError(problems)

    def __str__(self) -> str:
        return f"{self.count}/{self.unit}"

    @property
    def interval_us(self) -> int:
        """Microseconds between two messages, rounded up, so that the rate is never exceeded."""
        return -(-UNITS_MS[self.unit] * 1000 // self.count)

    @property
    def mhz(self) -> int:
        """The rate in millihertz: messages in 1,000 seconds, at least 1."""
        return max(1, self.count * 1_000_000 // UNITS_MS[self.unit])


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits retries to a share of the first attempts. Consumers report the first attempts.

    Args:
        percent: 1 to 100 retries per hundred first attempts. Defaults to 20.
        least: rate that is always allowed. Defaults to 1/s.
    """

    percent: int = 20
    least: Rate = Rate(1)

    def __post_init__(self) -> None:
        if problems := check_integer("budget.share", self.percent, 1, 100):
            raise ConfigError(problems)


@dataclass(frozen=True, slots=True)
class Breaker:
    """A circuit breaker per destination. While it is open, the destination's retries wait in the store.

    It opens when too many attempts fail. After `open_ms`, one retry is sent as a probe. If the probe succeeds, the
    breaker closes.

    Args:
        percent: failed attempts per hundred that open the breaker. Defaults to 50.
        of: least number of results before the breaker opens. Defaults to 20.
        within_ms: time over which results are counted. Defaults to 60,000.
        open_ms: how long the breaker stays open before a probe, and waits for a probe's result. Defaults to 30,000.
        by: header whose value names the destination. Defaults to "": the topic is the destination.
    """

    percent: int = 50
    of: int = 20
    within_ms: int = 60_000
    open_ms: int = 30_000
    by: str = ""

    def __post_init__(self) -> None:
        problems = check_integer("breaker.failures", self.percent, 1, 100)
        problems += check_integer("breaker.of", self.of, 1, _MOST)
        problems += check_duration("breaker.within", self.within_ms, 100)
        problems += check_duration("breaker.open", self.open_ms, 10)
        if not isinstance(self.by, str) or len(self.by) > 100 or not (self.by.isprintable() or not self.by):
            problems.append(f"expected breaker.by to be the name of a header, got: {self.by!r}")
        if problems:
            raise ConfigError(problems)


def parse_rate(text: object) -> Rate | None:
    """Read a rate such as "100/s", "30/m" or "5/h". Returns None for anything else."""
    match = _RATE.fullmatch(text) if isinstance(text, str) else None
    return None if match is None or not 1 <= int(match[1]) <= _MOST else Rate(int(match[1]), match[2])


def parse_percent(text: object) -> int | None:
    """Read a share: "20%" as 20. Returns None for anything else."""
    match = _SHARE.fullmatch(text) if isinstance(text, str) else None
    return None if match is None or not 1 <= int(match[1]) <= 100 else int(match[1])


def describe(
    rate: Rate | None, burst: int, spread_ms: int, budget: Budget | None, breaker: Breaker | None
) -> list[str]:
    """What the settings of flow control do, in words, one line for each setting that is on."""
    lines = []
    if spread_ms:
        lines.append(f"spread: each due time is delayed by a random time up to {format_duration(spread_ms)}")
    if rate:
        at_once = f"{burst} at once" if burst else "a second's worth at once"
        lines.append(f"rate: at most {rate} are released, after a pause {at_once}; the rest waits in line")
    if budget:
        lines.append(
            f"budget: retries are at most {budget.percent}% of the first attempts that consumers report, and at least "
            f"{budget.least}; the rest waits in line"
        )
    if breaker:
        where = f"destination (header {breaker.by})" if breaker.by else "topic"
        lines.append(
            f"breaker: when {breaker.percent}% of the attempts at a {where} failed (of {breaker.of} or more within "
            f"{format_duration(breaker.within_ms)}), it gets no retries for {format_duration(breaker.open_ms)}, then "
            "one probe; waiting is not an attempt"
        )
    return lines


def check_flow(rate: object, burst: object, spread_ms: object, budget: object, breaker: object) -> list[str]:
    """The problems of a policy's flow control settings."""
    problems = []
    for name, value, kind in (("rate", rate, Rate), ("budget", budget, Budget), ("breaker", breaker, Breaker)):
        if value is not None and not isinstance(value, kind):
            problems.append(f"expected {name} to be a {kind.__name__} or None, got: {value!r}")
    return [*problems, *check_integer("burst", burst, 0, _MOST), *check_duration("spread", spread_ms)]

"""Kinds of delay: how long to wait after the n-th failure.

Each kind is a frozen value with one pure method, `draw(attempt, previous_ms, rng)`. `attempt` is the number of the
failed attempt, from 1, so a curve begins at `base`. A draw costs O(1) at any attempt: the exponent is capped
*before* the power is computed (`2.0**1024` overflows a float; `2**10**9` would fill the memory). All times are whole
milliseconds, drawn as integers, both ends included. Any thread may draw; the caller owns `rng`.

Jitter follows Brooker, "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015); c is the capped curve:
full = uniform(0, c); equal = c/2 + uniform(0, c/2); decorrelated = min(cap, uniform(base, 3 * previous)).
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from retry_topic.policy.checks import check_choice, check_duration, check_integer, check_number, check_tuple
from wheel_sched.duration import UNITS_MS, format_duration
from wheel_sched.errors import ConfigError

Jitter = Literal["none", "full", "equal"]
JITTERS: tuple[Jitter, ...] = ("none", "full", "equal")

DEFAULT_CAP_MS = UNITS_MS["h"]
MAX_FACTOR = 100  # for a steeper curve use a list of delays
MAX_LISTED = 1_000  # for a longer list use a curve


@dataclass(slots=True)
class Draw:
    """One drawn delay and how it was drawn.

    Args:
        kind: the kind of delay.
        formula: the curve before the cap, as text such as `1s*2^2`.
        curve_ms: value of the curve after the cap, before jitter.
        capped: whether the cap lowered the curve or the draw.
        jitter: `none`, `full`, `equal` or `decorrelated`.
        low_ms: least possible draw.
        high_ms: greatest possible draw.
        delay_ms: the drawn delay.
    """

    kind: str
    formula: str
    curve_ms: int
    capped: bool
    jitter: str
    low_ms: int
    high_ms: int
    delay_ms: int


def _jittered(kind: str, formula: str, curve_ms: int, capped: bool, jitter: Jitter, rng: random.Random) -> Draw:
    low_ms = 0 if jitter == "full" else curve_ms // 2 if jitter == "equal" else curve_ms
    delay_ms = curve_ms if jitter == "none" else rng.randint(low_ms, curve_ms)
    return Draw(kind, formula, curve_ms, capped, jitter, low_ms, curve_ms, delay_ms)


def _check_cap(base_ms: int, cap_ms: int) -> list[str]:
    problems = check_duration("base", base_ms) + check_duration("cap", cap_ms, low_ms=1)
    if not problems and cap_ms < base_ms:
        problems.append(
            f"expected cap to be at least base ({format_duration(base_ms)}), got: {format_duration(cap_ms)}"
        )
    return problems


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same delay after every failure.

    Args:
        base_ms: the delay. Defaults to 1,000 (1 s).
        jitter: the kind of jitter, see the module. Defaults to "none".
    """

    base_ms: int = 1_000
    jitter: Jitter = "none"

    def __post_init__(self) -> None:
        if problems := check_duration("base", self.base_ms) + check_choice("jitter", self.jitter, JITTERS):
            raise ConfigError(problems)

    def draw(self, attempt: int, previous_ms: int | None, rng: random.Random) -> Draw:
        """The delay after failure number `attempt`."""
        return _jittered("fixed", "", self.base_ms, False, self.jitter, rng)


@dataclass(frozen=True, slots=True)
class Linear:
    """`base + step * (attempt - 1)`, at most `cap`.

    Args:
        base_ms: delay after the first failure. Defaults to 1,000 (1 s).
        step_ms: added per further failure. Defaults to 1,000 (1 s).
        cap_ms: longest delay. Defaults to 3,600,000 (1 h).
        jitter: the kind of jitter, see the module. Defaults to "none".
    """

    base_ms: int = 1_000
    step_ms: int = 1_000
    cap_ms: int = DEFAULT_CAP_MS
    jitter: Jitter = "none"

    def __post_init__(self) -> None:
        problems = _check_cap(self.base_ms, self.cap_ms) + check_duration("step", self.step_ms)
        if problems := problems + check_choice("jitter", self.jitter, JITTERS):
            raise ConfigError(problems)

    def draw(self, attempt: int, previous_ms: int | None, rng: random.Random) -> Draw:
        """The delay after failure number `attempt`."""
        steps = max(0, attempt - 1)
        raw_ms = self.base_ms + self.step_ms * steps  # integers: no overflow at any attempt
        formula = f"{format_duration(self.base_ms)}+{format_duration(self.step_ms)}*{steps}"
        return _jittered("linear", formula, min(raw_ms, self.cap_ms), raw_ms > self.cap_ms, self.jitter, rng)


@dataclass(frozen=True, slots=True)
class Exponential:
    """`base * factor ** (attempt - 1)`, at most `cap`.

    Args:
        base_ms: delay after the first failure. Defaults to 1,000 (1 s).
        factor: growth per further failure, 1 to 100. Defaults to 2.
        cap_ms: longest delay. Defaults to 3,600,000 (1 h).
        jitter: the kind of jitter, see the module. Defaults to "full", which spreads many equal failures best.
    """

    base_ms: int = 1_000
    factor: float = 2
    cap_ms: int = DEFAULT_CAP_MS
    jitter: Jitter = "full"

    def __post_init__(self) -> None:
        problems = _check_cap(self.base_ms, self.cap_ms)
        problems += check_number("factor", self.factor, 1, MAX_FACTOR)
        if problems := problems + check_choice("jitter", self.jitter, JITTERS):
            raise ConfigError(problems)

    def draw(self, attempt: int, previous_ms: int | None, rng: random.Random) -> Draw:
        """The delay after failure number `attempt`."""
        formula, curve_ms, capped = _curve(self.base_ms, self.factor, self.cap_ms, attempt)
        return _jittered("exponential", formula, curve_ms, capped, self.jitter, rng)


@lru_cache(maxsize=1024)  # many messages fail at the same few attempts
def _curve(base_ms: int, factor: float, cap_ms: int, attempt: int) -> tuple[str, int, bool]:
    """The exponential curve at an attempt: its formula, its value after the cap, and whether the cap lowered it."""
    exponent = min(max(0, attempt - 1), _highest_exponent(base_ms, factor, cap_ms))
    # Round to a microsecond first: 1000 * 1.1**2 is 1210.0000000000002 and must not become 1211.
    raw_ms = math.ceil(round(base_ms * factor**exponent, 3))
    # The formula shows the true exponent, even if a smaller one was computed.
    formula = f"{format_duration(base_ms)}*{factor:g}^{max(0, attempt - 1)}"
    return formula, min(raw_ms, cap_ms), raw_ms > cap_ms


def _highest_exponent(base_ms: int, factor: float, cap_ms: int) -> int:
    """The first exponent at which the curve is above the cap. A larger exponent changes nothing."""
    if base_ms == 0 or factor == 1:
        return 0
    # One more than needed: the logarithm may be slightly too low, and `capped` needs a value above the cap.
    return math.ceil(math.log(cap_ms / base_ms) / math.log(factor)) + 1


@dataclass(frozen=True, slots=True)
class Decorrelated:
    """`uniform(base, 3 * previous delay)`, at most `cap`. It grows on average, and differs between messages.

    Args:
        base_ms: least delay; for the first failure it is also the previous delay. Defaults to 1,000 (1 s).
        cap_ms: longest delay. Defaults to 3,600,000 (1 h).
    """

    base_ms: int = 1_000
    cap_ms: int = DEFAULT_CAP_MS

    def __post_init__(self) -> None:
        if problems := _check_cap(self.base_ms, self.cap_ms):
            raise ConfigError(problems)

    def draw(self, attempt: int, previous_ms: int | None, rng: random.Random) -> Draw:
        """The delay after failure number `attempt`. A previous delay outside base..cap is clamped to this range."""
        seed_ms = min(max(previous_ms or 0, self.base_ms), self.cap_ms)
        top_ms = 3 * seed_ms
        drawn_ms = rng.randint(self.base_ms, top_ms)
        formula = f"uniform({format_duration(self.base_ms)}, 3*{format_duration(seed_ms)})"
        delay_ms = min(drawn_ms, self.cap_ms)
        high_ms = min(top_ms, self.cap_ms)
        return Draw(
            "decorrelated", formula, high_ms, drawn_ms > delay_ms, "decorrelated", self.base_ms, high_ms, delay_ms
        )


@dataclass(frozen=True, slots=True)
class Listed:
    """An explicit list of delays. After its end the last delay is repeated.

    Args:
        delays_ms: delay after the first failure, the second, and so on. Defaults to 1 s, 10 s, 1 min, 10 min.
        jitter: the kind of jitter, see the module. Defaults to "none".
    """

    delays_ms: tuple[int, ...] = (1_000, 10_000, 60_000, 600_000)
    jitter: Jitter = "none"

    def __post_init__(self) -> None:
        if problems := check_tuple("delays", self.delays_ms):
            raise ConfigError(problems)  # its entries cannot be checked
        problems = check_integer("the number of delays", len(self.delays_ms), 1, MAX_LISTED)
        for number, delay_ms in enumerate(self.delays_ms, 1):
            problems += check_duration(f"delays.{number}", delay_ms)
        if problems := problems + check_choice("jitter", self.jitter, JITTERS):
            raise ConfigError(problems)

    def draw(self, attempt: int, previous_ms: int | None, rng: random.Random) -> Draw:
        """The delay after failure number `attempt`."""
        entry = min(max(1, attempt), len(self.delays_ms))
        formula = f"entry {entry} of {len(self.delays_ms)}"
        return _jittered("list", formula, self.delays_ms[entry - 1], False, self.jitter, rng)


Delay = Fixed | Linear | Exponential | Decorrelated | Listed

KINDS: dict[str, type[Delay]] = {
    "fixed": Fixed,
    "linear": Linear,
    "exponential": Exponential,
    "decorrelated": Decorrelated,
    "list": Listed,
}
"""The names of the kinds in policy files and explanations."""


def check_delay(value: Any) -> list[str]:
    """`value` must be one of the kinds of delay."""
    if isinstance(value, tuple(KINDS.values())):
        return []
    return [f"expected delay to be one of {', '.join(cls.__name__ for cls in KINDS.values())}, got: {value!r}"]

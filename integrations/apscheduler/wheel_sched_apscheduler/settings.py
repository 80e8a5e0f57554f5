"""Settings of jobstores and schedulers. An ini file or the environment gives them as text, so text is accepted too.

Each function adds what is wrong to the list `problems`, and always returns a value with which the caller can continue.
So the caller can raise one error that names all problems.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from wheel_sched_apscheduler.run_times import MISFIRES, Misfire
from wheel_sched_apscheduler.stores.fair_jobs import FairJobs, read_fair

Delivery = Literal["at_least_once", "at_most_once"]
InstancesScope = Literal["store", "process"]
SCOPES: tuple[InstancesScope, ...] = ("store", "process")
DELIVERIES: tuple[Delivery, ...] = ("at_least_once", "at_most_once")
Choice = TypeVar("Choice", bound=str)
_YES = ("1", "true", "yes", "on", "t", "y")
_NO = ("0", "false", "no", "off", "f", "n")


@dataclass(frozen=True, slots=True)
class SharedStoreSettings:
    """The checked settings of a `RedisWheelJobStore`. The docstring of that class explains them."""

    lease_ms: int
    delivery: Delivery
    misfire: Misfire
    max_instances_scope: InstancesScope
    batch: int
    max_sleep_s: float
    history: int
    quarantine_refusals: int
    quarantine_after_ms: int
    announce_s: float
    fair: FairJobs | None = None

    @classmethod
    def read(cls, given: Mapping[str, Any], shards: int, problems: list[str]) -> SharedStoreSettings:
        """Check settings under the names of their arguments. Adds what is wrong to `problems`."""
        year_s = 86_400 * 365
        lease_ms = int(seconds("lease_s", given["lease_s"], 0.1, 86_400, problems) * 1000)
        delivery = one_of("delivery", given["delivery"], DELIVERIES, problems)
        once = delivery == "at_most_once"
        return cls(
            lease_ms=lease_ms,
            delivery=delivery,
            misfire=one_of("misfire", given["misfire"], MISFIRES, problems),
            max_instances_scope=one_of("max_instances_scope", given["max_instances_scope"], SCOPES, problems),
            batch=whole("batch", given["batch"], 1, 500, problems),
            max_sleep_s=seconds("max_sleep_s", given["max_sleep_s"], 0.01, 3600, problems),
            history=whole("history", given["history"], 0, None, problems),
            quarantine_refusals=whole("quarantine_refusals", given["quarantine_refusals"], 1, None, problems),
            quarantine_after_ms=int(
                seconds("quarantine_after_s", given["quarantine_after_s"], 0, year_s, problems) * 1000
            ),
            announce_s=seconds("announce_s", given["announce_s"], 0, 43_200, problems),
            fair=read_fair(given["fair"], shards, problems, lease_ms=lease_ms, settles_first=once),
        )


def whole(name: str, value: Any, least: int, greatest: int | None, problems: list[str]) -> int:
    """Read a whole number from `least` to `greatest` (None: no limit). Adds any other value to `problems`."""
    number = _number(int, value)
    if type(number) is int and number >= least and (greatest is None or number <= greatest):
        return number
    bounds = f"from {least} up" if greatest is None else f"from {least} to {greatest}"
    problems.append(f"expected {name} to be a whole number {bounds}, got: {value!r}")
    return least


def seconds(name: str, value: Any, least: float, greatest: float, problems: list[str]) -> float:
    """Read a time in seconds from `least` to `greatest`. Adds any other value to `problems`."""
    number = _number(float, value)
    if isinstance(number, int | float) and not isinstance(number, bool) and least <= number <= greatest:
        return number
    problems.append(f"expected {name} to be from {least:g} to {greatest:g} (seconds), got: {value!r}")
    return least


def _number(kind: type, value: Any) -> Any:
    """The number that a text contains; None if it contains none. A value that is no text is returned unchanged."""
    try:
        return kind(value) if isinstance(value, str) else value
    except ValueError:
        return None


def flag(name: str, value: Any, problems: list[str]) -> bool:
    """Read true or false. Adds any other value to `problems`."""
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else None
    if word not in (*_YES, *_NO):
        problems.append(f"expected {name} to be true or false, got: {value!r}")
    return word in _YES


def one_of(name: str, value: Choice, choices: Sequence[Choice], problems: list[str]) -> Choice:
    """Read one of the words `choices`. Adds any other value to `problems`, and returns it."""
    if value not in choices:
        listed = " or ".join(choices) if len(choices) == 2 else f"one of {', '.join(choices)}"
        problems.append(f"expected {name} to be {listed}, got: {value!r}")
    return value

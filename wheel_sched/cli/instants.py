"""Types of command-line values: durations and instants.

A duration is `250ms`, `90s`, `5m` or `1h30m`. An instant is `now`, RFC 3339 with a time zone, a duration (`5m`: five
minutes ago), or `+` and a duration (`+5m`: in five minutes).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from wheel_sched.duration import parse_duration
from wheel_sched.errors import ConfigError
from wheel_sched.management.moments import instant_ms

_FORMS = "an instant may also be now, 2h (ago) or +5m (from now)"


def now_ms() -> int:
    """This machine's time, in epoch milliseconds. `doctor` shows by how much the store's time differs."""
    return time.time_ns() // 1_000_000


if TYPE_CHECKING:
    _Milliseconds = click.ParamType[int]
else:
    _Milliseconds = click.ParamType  # the class of click 8.1 takes no type argument


class DurationType(_Milliseconds):
    """A duration, in milliseconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_duration(value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


class InstantType(_Milliseconds):
    """An instant, in epoch milliseconds."""

    name = "instant"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = value.strip()
        if text == "now":
            return now_ms()
        try:
            if text[:1] == "+":
                return now_ms() + parse_duration(text[1:])
            if text[:1] == "P" or (text[-1:].isalpha() and "T" not in text):
                return now_ms() - parse_duration(text.removeprefix("-"))
        except ConfigError:
            self.fail(f"expected an instant, got: {value!r}; {_FORMS}", param, ctx)
        try:
            return instant_ms(text)
        except ConfigError as error:
            self.fail(f"{error}; {_FORMS}", param, ctx)


DURATION = DurationType()
INSTANT = InstantType()

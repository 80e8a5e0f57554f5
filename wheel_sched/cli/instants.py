"""Types of command-line values: durations and instants.

A duration is `250ms`, `90s`, `5m` or `1h30m`. An instant is `now`, RFC 3339 with a time zone, a duration (`5m`: five
minutes ago), or `+` and a duration (`+5m`: in five minutes).
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from wheel_sched.duration import parse_duration
from wheel_sched.errors import ConfigError


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
            at = datetime.fromisoformat(text)
        except (ConfigError, ValueError):
            self.fail(
                f"expected an instant such as now, 2h (ago), +5m (from now) or 2026-01-01T12:00:00Z, got: {value!r}",
                param,
                ctx,
            )
        if at.tzinfo is None:
            self.fail(f"expected a time zone, as in {value}Z or {value}+01:00, got: {value!r}", param, ctx)
        if at.year < 1970:
            self.fail(f"expected an instant after 1970, got: {value!r}", param, ctx)
        return -int(-at.timestamp() * 1000 // 1)  # rounded up to whole ms: never early


DURATION = DurationType()
INSTANT = InstantType()

"""Durations and points in time, as the command line reads them."""

from __future__ import annotations

import click
import pytest

from wheel_sched.cli import instants
from wheel_sched.cli.instants import DURATION, INSTANT

NOW = 1_800_000_000_000


@pytest.fixture(autouse=True)
def _now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instants, "now_ms", lambda: NOW)


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("now", NOW),
        ("2h", NOW - 7_200_000),
        ("-2h", NOW - 7_200_000),
        ("PT2H", NOW - 7_200_000),
        ("+5m", NOW + 300_000),
        ("2026-01-01T00:00:00Z", 1_767_225_600_000),
        ("2026-01-01T01:00:00+01:00", 1_767_225_600_000),
        ("2026-01-01T00:00:00.0001Z", 1_767_225_600_001),
    ],
)
def test_an_instant_is_a_time_a_distance_back_or_a_distance_ahead(text: str, at_ms: int) -> None:
    """An instant is RFC 3339, or a duration before or after now. A part of a millisecond counts as a whole one."""
    assert INSTANT.convert(text, None, None) == at_ms


@pytest.mark.parametrize(
    "text", ["", "5", "yesterday", "2026-01-01T00:00:00", "2026-13-01T00:00:00Z", "+", "1900-01-01T00:00:00Z"]
)
def test_a_text_that_is_not_an_instant_is_wrong_usage(text: str) -> None:
    """A text without a unit or a time zone is refused, not guessed."""
    with pytest.raises(click.BadParameter):
        INSTANT.convert(text, None, None)


def test_a_duration_needs_a_unit() -> None:
    """`90s` becomes 90,000 ms. A bare number is refused."""
    assert DURATION.convert("90s", None, None) == 90_000
    with pytest.raises(click.BadParameter):
        DURATION.convert("90", None, None)

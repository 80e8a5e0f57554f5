"""Durations written as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retry_topic.policy import format_duration, parse_duration
from wheel_sched.duration import LONGEST_MS
from wheel_sched.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("250ms", 250),
        ("90s", 90_000),
        ("5m", 300_000),
        ("2h", 7_200_000),
        ("1d", 86_400_000),
        ("1w", 604_800_000),
        ("1h30m", 5_400_000),
        ("1 h 30 m", 5_400_000),
        ("1.5s", 1_500),
        ("0s", 0),
        ("PT90S", 90_000),
        ("PT1H30M", 5_400_000),
        ("P1DT12H", 129_600_000),
        ("P2W", 1_209_600_000),
        ("PT0.25S", 250),
    ],
)
def test_the_usual_spellings_are_understood(text: str, expected_ms: int) -> None:
    """Short, compound, decimal and ISO 8601 texts are parsed to milliseconds."""
    assert parse_duration(text) == expected_ms


def test_a_fraction_of_a_millisecond_rounds_up() -> None:
    """A part of a millisecond counts as a whole one, so that nothing is early."""
    assert parse_duration("0.0001s") == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "-5s",
        "s",
        "5x",
        "30m1h",
        "1s1s",
        "1h 30",
        "PT",
        "P",
        "P1M",
        "P1Y",
        "PT1H30",
        "1e3s",
        "٣s",
        "NaN",
        "3651d",
    ],
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    """Missing, repeated, unordered and unknown units, signs, non-ASCII digits and more than ten years are errors."""
    with pytest.raises(ConfigError, match="expected a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("delay_ms", "text"),
    [(0, "0s"), (250, "250ms"), (2_700, "2.7s"), (61_001, "1m1.001s"), (5_400_000, "1h30m"), (90_000_000, "1d1h")],
)
def test_durations_read_well(delay_ms: int, text: str) -> None:
    """A duration is formatted in its shortest exact form."""
    assert format_duration(delay_ms) == text


@given(st.integers(0, LONGEST_MS))
def test_formatting_and_parsing_are_inverse(delay_ms: int) -> None:
    """A duration that is formatted and parsed again is equal."""
    assert parse_duration(format_duration(delay_ms)) == delay_ms

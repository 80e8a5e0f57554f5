"""Values of messages become values that JSON can hold."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from wheel_sched.dashboard.json_values import DEEPEST, json_value


@pytest.mark.parametrize(
    ("value", "made"),
    [
        ("plain", "plain"),
        ("ü", "ü"),
        ("\ud800", "\\ud800"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (True, True),
        (b"\xff", "\\xff"),
        ({1: {"\udfff": (1, 2)}}, {"1": {"\\udfff": [1, 2]}}),
        (datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01 00:00:00+00:00"),
    ],
)
def test_each_value_can_be_written(value: Any, made: Any) -> None:
    """A value of a type that JSON lacks becomes text, so every result can be sent."""
    assert json_value(value) == made
    json.dumps(json_value(value), allow_nan=False, ensure_ascii=False).encode()


def test_deep_values_are_cut() -> None:
    """A value that is nested too deeply is cut."""
    value: Any = []
    for _ in range(10_000):
        value = [value]
    assert json.dumps(json_value(value)).count("[") == DEEPEST

"""Fixtures: every test of the wheel runs with every core, and most tests with several ticks and sizes of the wheel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from wheel_sched.wheel import CORES, TimingWheel

MakeWheel = Callable[..., TimingWheel[Any]]

# Tick in ms and size: the smallest, the default, one with a tick of several ms, a coarse one. The model test has more.
SHAPES = [(1, 2), (1, 4096), (5, 8), (100, 512)]


@pytest.fixture(params=sorted(CORES))
def core(request: pytest.FixtureRequest) -> type[TimingWheel[Any]]:
    """The wheel class of one core."""
    return CORES[request.param]


@pytest.fixture(params=SHAPES, ids=[f"tick{tick_ms}-size{size}" for tick_ms, size in SHAPES])
def make_wheel(core: type[TimingWheel[Any]], request: pytest.FixtureRequest) -> MakeWheel:
    """Return a function that makes a wheel whose time is `now_ms`. All wheels of a test have the same core, tick
    and size."""
    tick_ms, wheel_size = request.param

    def make(now_ms: int = 0) -> TimingWheel[Any]:
        return core(now_ms, tick_ms=tick_ms, wheel_size=wheel_size)

    return make

"""Which core of the timing wheel is chosen, and the reason that is reported."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from wheel_sched import wheel


def choice_with(**environment: str) -> str:
    code = "from wheel_sched import wheel as w; print(w.CORE, sorted(w.CORES), w.CORE_REASON, sep='|')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        text=True,
        capture_output=True,
        timeout=60,
        check=True,
    )
    return done.stdout.strip()


def test_the_pure_core_can_be_forced() -> None:
    """`WHEEL_SCHED_PURE=1` always selects the pure core, and the reported reason names this variable."""
    assert choice_with(WHEEL_SCHED_PURE="1") == "pure|['pure']|WHEEL_SCHED_PURE=1 asks for it"


@pytest.mark.skipif("compiled" not in wheel.CORES, reason="this installation had no compiler")
def test_the_compiled_core_is_taken_when_it_is_there() -> None:
    """If the compiled core is installed, it is chosen. A value of `WHEEL_SCHED_PURE` other than 1 has no effect."""
    assert choice_with(WHEEL_SCHED_PURE="0") == "compiled|['compiled', 'pure']|it is built for this Python"


def test_the_classes_are_those_of_one_core() -> None:
    """An entry that the exported wheel makes has the exported entry class."""
    timer: wheel.TimingWheel[str] = wheel.TimingWheel()
    assert isinstance(timer.schedule("task", 1), wheel.TimerTaskEntry)

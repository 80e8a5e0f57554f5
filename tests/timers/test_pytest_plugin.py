"""The pytest plugin as another project uses it: a new pytest process finds it by its entry point."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from wheel_sched.testing import VirtualClock
from wheel_sched.testing.virtual_loop import VirtualEventLoop

TESTS = """
import asyncio
import threading
from wheel_sched.timers import SystemTimer
from wheel_sched.timers import AsyncTimer

def test_threads(virtual_clock):
    fired = threading.Event()
    with SystemTimer(clock=virtual_clock) as timer:
        timer.schedule(3_600_000, fired.set)
        virtual_clock.wait_for_waiters()
        virtual_clock.advance(3_599_999)
        assert not fired.is_set()
        virtual_clock.advance(1)
        assert fired.wait(40)

def test_asyncio(virtual_loop):
    async def main():
        fired = []
        async with AsyncTimer() as timer:
            timer.schedule(3_600_000, fired.append, 1)
            await asyncio.sleep(3599.999)
            assert fired == []
            await asyncio.sleep(0.002)  # virtual
        return fired
    assert virtual_loop.run_until_complete(main()) == [1]
    assert virtual_loop.clock.monotonic_ms() == 3_600_001

def test_a_task_left_behind_is_cancelled(virtual_loop):
    virtual_loop.create_task(asyncio.sleep(9))
"""


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_theirs.py").write_text(TESTS, "utf-8")
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\nfilterwarnings = error\n", "utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=folder, text=True, capture_output=True, timeout=150)


def test_this_very_run_has_the_fixtures(virtual_clock: VirtualClock, virtual_loop: VirtualEventLoop) -> None:
    """The plugin's fixtures exist without any configuration."""
    assert virtual_clock.monotonic_ms() == virtual_loop.clock.monotonic_ms() == 0
    assert [point.value for point in entry_points(group="pytest11", name="wheel_sched")] == [
        "wheel_sched.testing.pytest_plugin"
    ]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_strict_project_can_use_the_fixtures(tmp_path: Path) -> None:
    """A project that turns warnings into errors and allows only declared marks can use the fixtures without
    configuration."""
    done = run_pytest(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_plugin_can_be_left_out(tmp_path: Path) -> None:
    """With `-p no:wheel_sched` the fixtures do not exist."""
    done = run_pytest(tmp_path, "-p", "no:wheel_sched")
    assert done.returncode == 1
    assert done.stdout.count("fixture 'virtual_clock' not found") == 1
    assert done.stdout.count("fixture 'virtual_loop' not found") == 2


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_plugin_imports_nothing_heavy() -> None:
    """Every pytest run loads the plugin, so the plugin imports no asyncio, no wheel and no store."""
    program = (
        "import sys, pytest; before = set(sys.modules); import wheel_sched.testing.pytest_plugin;"
        "print(*sorted(name for name in set(sys.modules) - before if name.startswith(('asyncio', 'wheel_sched'))))"
    )
    done = subprocess.run([sys.executable, "-c", program], text=True, capture_output=True, timeout=60, check=True)
    assert done.stdout.split() == [
        "wheel_sched",
        "wheel_sched.errors",
        "wheel_sched.testing",
        "wheel_sched.testing.pytest_plugin",
        "wheel_sched.testing.virtual_clock",
    ]

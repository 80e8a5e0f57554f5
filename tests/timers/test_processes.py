"""Forks and the end of the interpreter while timers are pending. Each test starts a new process."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from wheel_sched.wheel import CORES

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(120),
    pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork"),
]


@pytest.fixture(params=sorted(CORES), autouse=True)
def core(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Selects the core of the wheel that the started processes use."""
    monkeypatch.setenv("WHEEL_SCHED_PURE", "1" if request.param == "pure" else "0")


def run(program: str) -> list[str]:
    """Run a Python program, and return the lines that it prints. It must end with code 0 and an empty stderr."""
    # Python 3.12 warns of every fork with threads, which is what these tests are about.
    strict = ["-W", "error", "-W", "ignore:This process:DeprecationWarning"]
    command = [sys.executable, *strict, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, text=True, capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout.split("\n")[:-1]


PREAMBLE = """
import os, sys, threading, time
from wheel_sched.timers import SystemTimer
from wheel_sched.wheel import EntryState

def say(line):  # in one piece, and through no buffer that a child would inherit
    os.write(1, f"{line}\\n".encode())

def in_child(work):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""


def test_a_child_starts_with_an_empty_timer_that_works() -> None:
    """After a fork, pending timers run once, in the parent. In the child their handles are CANCELLED, and new
    timers run."""
    lines = run(
        PREAMBLE
        + """
timer = SystemTimer()
fired = threading.Event()
parent = os.getpid()
where = lambda: "parent" if os.getpid() == parent else "child"
handle = timer.schedule(300, lambda: (say(f"parent's, in {where()}"), fired.set()))
running = threading.Event()
released = threading.Event()
pooled = SystemTimer(executor="threads")
pooled.schedule(0, lambda: (running.set(), released.wait(40)))
assert running.wait(40)

def child():
    assert (len(timer), handle.state, handle.cancel()) == (0, EntryState.CANCELLED, EntryState.CANCELLED)
    assert not handle.touch(5) and not handle.reschedule(5)
    done = threading.Event()
    timer.schedule(1, lambda: (say("child's own"), done.set()))
    assert done.wait(40)
    done_in_pool = threading.Event()
    pooled.schedule(1, lambda: (say("child's pool"), done_in_pool.set()))
    assert done_in_pool.wait(40)
    time.sleep(0.5)  # the parent's timer is due meanwhile
    say(f"{len(timer.close())} {len(pooled.close())}")

in_child(child)
assert fired.wait(40)
released.set()
say(f"{len(timer.close())} {len(pooled.close())}")
"""
    )
    assert sorted(lines) == sorted(["child's own", "child's pool", "0 0", "parent's, in parent", "0 0"])


def test_a_fork_in_the_midst_of_the_wheel_s_work_leaves_no_lock_held() -> None:
    """A process forks forty times while its threads schedule, cancel and fire timers. In each child a timer still
    works."""
    lines = run(
        PREAMBLE
        + """
sys.setswitchinterval(1e-6)
timer = SystemTimer()
stop = threading.Event()

def churn():
    while not stop.is_set():
        handles = [timer.schedule(number % 3, int) for number in range(50)]
        timer.schedule(1, int, key="k")
        for handle in handles[::2]:
            handle.cancel()

threads = [threading.Thread(target=churn) for _ in range(3)]
for thread in threads:
    thread.start()

def child():
    fired = threading.Event()
    timer.schedule(1, fired.set, key="k")
    assert fired.wait(40)
    assert timer.close() == []

for _ in range(40):
    in_child(child)
stop.set()
for thread in threads:
    thread.join()
timer.close()
say("forty")
"""
    )
    assert lines == ["forty"]


def test_a_fork_from_within_a_callback_works() -> None:
    """A callback forks on the reaper's thread, as some servers start their workers. Timers work in child and parent."""
    lines = run(
        PREAMBLE
        + """
timer = SystemTimer()
ended = threading.Event()

def child():
    fired = threading.Event()
    timer.schedule(1, fired.set)
    assert fired.wait(40)
    say("child")

timer.schedule(1, lambda: (in_child(child), ended.set()))
assert ended.wait(40)
say(f"{len(timer)} {timer.statistics.failed}")
timer.close()
"""
    )
    assert lines == ["child", "0 0"]


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_the_interpreter_ends_with_timers_pending(executor: str) -> None:
    """If timers are pending, the interpreter still ends, prints nothing, and runs no timer that is not due."""
    lines = run(
        PREAMBLE
        + f"""
timers = [SystemTimer(executor={executor!r}) for _ in range(3)]
for timer in timers:
    for number in range(1000):
        timer.schedule(number % 7, int)
        timer.schedule(60_000, print, "not due")
    timer.every(1, int)
say("end")
"""
    )
    assert lines == ["end"]


def test_the_interpreter_ends_though_a_callback_blocks_for_ever() -> None:
    """If a callback blocks for ever, the interpreter still ends: it waits one second at most for the reaper's
    daemon thread."""
    lines = run(
        PREAMBLE
        + """
timer = SystemTimer()
begun = threading.Event()
timer.schedule(0, lambda: (begun.set(), threading.Event().wait()))
assert begun.wait(40)
say("end")
"""
    )
    assert lines == ["end"]


def test_an_event_loop_ends_with_timers_pending() -> None:
    """A timer that was not closed causes no warning and does not delay the end of the loop."""
    lines = run(
        """
import asyncio
from wheel_sched.timers import AsyncTimer

async def main():
    timer = AsyncTimer()
    timer.schedule(60_000, print, "not due")
    fired = asyncio.Event()
    timer.schedule(1, fired.set)
    await fired.wait()
    print("end")

asyncio.run(main())
"""
    )
    assert lines == ["end"]

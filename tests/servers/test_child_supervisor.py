"""If the process that started a supervised child ends, even by a kill, the child ends, and so do the child's
children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.servers.child_supervisor import SupervisedChild

pytestmark = pytest.mark.real

PATIENCE_S = 40.0

# Starts a child of its own and writes both process ids. Neither process ends by itself.
PAIR = """
import os, subprocess, sys, time
other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])  # until its supervisor ends it
with open(sys.argv[1] + ".new", "w") as file:
    file.write(f"{os.getpid()} {other.pid}")
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(600)  # until its supervisor ends it
"""

# Supervises a pair, and waits to be killed.
OWNER = """
import sys, time
from tests.servers.child_supervisor import SupervisedChild
child = SupervisedChild([sys.executable, "-c", *sys.argv[1:]])
print(child.pid, flush=True)
time.sleep(600)  # until the test kills it
"""


def until(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.01)  # polls until other processes have finished


def runs(pid: int) -> bool:
    """Return whether the process runs. A zombie does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # ProcessLookupError: the process ended between open and read
        return False


def pids_in(path: Path) -> list[int]:
    until(path.exists)
    return [int(pid) for pid in path.read_text().split()]


@pytest.mark.parametrize("frozen", [False, True], ids=["running", "frozen"])
def test_a_killed_owner_takes_all_with_it(tmp_path: Path, frozen: bool) -> None:
    """When the starting process is killed, the child and the child's own child end, even if they are frozen."""
    pid_file = tmp_path / "pids"
    with subprocess.Popen([sys.executable, "-c", OWNER, PAIR, str(pid_file)], stdout=subprocess.PIPE) as owner:
        try:
            assert owner.stdout is not None
            child = int(owner.stdout.readline())
            pids = pids_in(pid_file)
            assert pids[0] == child
            if frozen:
                os.killpg(child, signal.SIGSTOP)
        finally:
            owner.kill()
    until(lambda: not any(map(runs, pids)))


def test_the_child_of_a_killed_supervisor_is_killed(tmp_path: Path) -> None:
    """On Linux, the child ends when its supervisor is killed."""
    child = SupervisedChild([sys.executable, "-c", PAIR, str(tmp_path / "pids")])
    pid, other = pids_in(tmp_path / "pids")
    os.kill(child.supervisor_pid, signal.SIGKILL)
    until(lambda: not runs(pid))
    os.kill(other, signal.SIGKILL)
    child.kill()


def test_freezing_is_not_the_end(tmp_path: Path) -> None:
    """A frozen child runs again after `thaw`. A second `kill` has no effect."""
    child = SupervisedChild([sys.executable, "-c", PAIR, str(tmp_path / "pids")])
    pids = pids_in(tmp_path / "pids")
    child.freeze()
    until(lambda: Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    child.thaw()
    until(lambda: Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "S")
    assert child.poll() is None
    assert "runs" in repr(child)
    child.kill()
    child.kill()
    until(lambda: not any(map(runs, pids)))
    assert "ended" in repr(child)


def test_exit_codes_and_output_are_passed_on(tmp_path: Path) -> None:
    """When the program ends, `poll` returns its exit code, and the file `out` has its output. If there is no such
    program, `poll` returns 127."""
    script = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    child = SupervisedChild([sys.executable, "-c", script], cwd=tmp_path, out=tmp_path / "out")
    until(lambda: child.poll() is not None)
    assert child.poll() == 3
    assert sorted((tmp_path / "out").read_text().split()) == ["err", "out"]
    absent = SupervisedChild(["no-such-program"], out=tmp_path / "absent")
    until(lambda: absent.poll() is not None)
    assert absent.poll() == 127
    assert "no-such-program" in (tmp_path / "absent").read_text()
    for one in (child, absent):
        one.kill()

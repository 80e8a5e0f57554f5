"""A child process that ends when the process that started it ends, even when that process is killed.

    child = SupervisedChild(["java", ...], cwd=folder, out=folder / "out")
    child.freeze()
    child.kill()

The starting process runs a supervisor process (this file, run by its path), which runs the child. The supervisor's
stdin is the read end of a pipe. The kernel closes the other end when the starting process exits or is killed. Then the
supervisor kills the child and everything that the child has started. The child has its own process group, so freezing
the child does not freeze the supervisor. If the supervisor itself is killed, Linux kills the child, but not what the
child has started. POSIX only.

`wheel_sched.store.embedded.supervisor` explains why this is a pipe and not a parent-death signal.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1  # linux/prctl.h
NOT_EXECUTABLE = 127  # what a shell answers for a program that cannot be executed


class SupervisedChild:
    """A running child. Any thread may use it, one thread at a time.

    Args:
        command: the program, looked up on PATH, and its arguments.
        cwd: the child's working folder. Defaults to the current one.
        out: a file to which the child's output is appended. Defaults to none: the output is discarded.
        env: the child's environment. Defaults to the environment of this process.

    Raises:
        OSError: the supervisor cannot be started. A program that does not exist is a child that ended with code 127.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        cwd: Path | None = None,
        out: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        with (out or Path(os.devnull)).open("ab") as written:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, *map(str, command)],
                cwd=cwd,
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=written,
                start_new_session=True,
            )
        assert self._supervisor.stdout is not None  # opened above
        with self._supervisor.stdout as answer:
            self.pid = int(answer.readline())

    @property
    def supervisor_pid(self) -> int:
        """The process id of the supervisor."""
        return self._supervisor.pid

    def poll(self) -> int | None:
        """Return the exit code, or None while the child runs."""
        return self._supervisor.poll()

    def freeze(self) -> None:
        """Suspend the child until `thaw`. Its connections stay open."""
        os.killpg(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen child continue."""
        os.killpg(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill the child and everything it has started, as a crash would, and wait for their end. Idempotent."""
        if self._supervisor.stdin is not None:
            self._supervisor.stdin.close()
        if self._supervisor.poll() is None:  # a fork of this process may hold the pipe open
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self._supervisor.wait()

    def __repr__(self) -> str:
        return f"<SupervisedChild pid={self.pid} {'runs' if self.poll() is None else 'ended'}>"


def _supervise(command: list[str]) -> int:
    """Run `command` until it ends or until stdin is closed. Return the exit code."""
    signalled, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    supervisor = os.getpid()
    child = os.fork()
    if child == 0:
        _become(command, libc, supervisor)
    with contextlib.suppress(OSError):  # the child has made its own group, or has ended
        os.setpgid(child, child)  # also here: a kill must not come before the child has a group
    os.write(1, b"%d\n" % child)
    os.close(1)
    ended = status = 0
    while not ended:
        ready, _, _ = select.select([0, signalled], [], [])
        if 0 in ready:  # nobody writes: readable means end of file
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            ended, status = os.waitpid(child, 0)
        else:
            os.read(signalled, 256)
            ended, status = os.waitpid(child, os.WNOHANG)  # a child that is merely frozen has not ended
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what the child has started ends with it
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _become(command: list[str], libc: ctypes.CDLL | None, supervisor: int) -> None:
    """Replace the forked child by `command`, in its own process group, and let Linux kill it with the supervisor.

    Never returns.
    """
    try:
        os.setpgid(0, 0)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        if libc is not None:
            libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() == supervisor:  # otherwise the supervisor died before prctl
            os.execvp(command[0], command)  # noqa: S606  # no shell wanted
    except OSError as error:
        os.write(2, f"cannot execute {command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(NOT_EXECUTABLE)


if __name__ == "__main__":
    sys.exit(_supervise(sys.argv[1:]))

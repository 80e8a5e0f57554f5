"""A child process on a leash: it ends when the process that started it is gone, however that one went.

    child = Leashed(["java", ...], cwd=folder, out=folder / "out")
    child.freeze()
    child.kill()

Between the two stands a process of a few lines (this file, run by path), which holds the read end of a pipe as its
stdin: the kernel closes the other end when we exit or are killed with SIGKILL, and then it kills the child with all the
child has started. The child has a process group of its own, so freezing it does not freeze who watches it. Should the
watcher be killed, Linux kills the child (not what that has started). POSIX only.

Why a pipe and not a parent-death signal of ours: see `wheel_sched.store.embedded.supervisor`.
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


class Leashed:
    """A running child. Any thread, one at a time.

    Args:
        command: the program, looked up on PATH, and its arguments.
        cwd: where it runs. Defaults to here.
        out: a file that its output is added to. Defaults to none: it is thrown away.
        env: its environment. Defaults to ours.

    Raises:
        OSError: the watcher cannot be started. A program that is not there is a child that ended with code 127.
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
            self._watcher = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, *map(str, command)],
                cwd=cwd,
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=written,
                start_new_session=True,
            )
        assert self._watcher.stdout is not None  # noqa: S101  # it was asked for
        with self._watcher.stdout as told:
            self.pid = int(told.readline())

    def poll(self) -> int | None:
        """Its exit code, None while it runs."""
        return self._watcher.poll()

    def freeze(self) -> None:
        """Let it stand still, its connections open, until `thaw`."""
        os.killpg(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        os.killpg(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill it and what it has started, as a crash would, and wait until it is gone. Idempotent."""
        if self._watcher.stdin is not None:
            self._watcher.stdin.close()
        if self._watcher.poll() is None:  # a fork of this process may hold the pipe as well
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self._watcher.wait()

    def __repr__(self) -> str:
        return f"<Leashed pid={self.pid} {'runs' if self.poll() is None else 'ended'}>"


def _watch(command: list[str]) -> int:
    """Run `command` until it ends or stdin does; the answer is its exit code."""
    signalled, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    us = os.getpid()
    child = os.fork()
    if child == 0:
        _become(command, libc, us)
    with contextlib.suppress(OSError):  # it has done so itself, or ended
        os.setpgid(child, child)  # here too: a kill must not come before it
    os.write(1, b"%d\n" % child)
    os.close(1)
    ended = status = 0
    while not ended:
        ready, _, _ = select.select([0, signalled], [], [])
        if 0 in ready:  # we never write: readable means end of file
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            ended, status = os.waitpid(child, 0)
        else:
            os.read(signalled, 256)
            ended, status = os.waitpid(child, os.WNOHANG)  # it may only have been frozen
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what it has started ends with it
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _become(command: list[str], libc: ctypes.CDLL | None, watcher: int) -> None:
    """In the child: a group of its own, tied to the watcher's life. Never returns."""
    try:
        os.setpgid(0, 0)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        if libc is not None:
            libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() == watcher:  # else it died before prctl could see it
            os.execvp(command[0], command)  # noqa: S606  # no shell wanted
    except OSError as error:
        os.write(2, f"cannot execute {command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(NOT_EXECUTABLE)


if __name__ == "__main__":
    sys.exit(_watch(sys.argv[1:]))

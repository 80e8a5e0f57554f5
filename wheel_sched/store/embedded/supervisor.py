"""The process between the owner and the server. It ends the server when the owner has ended in any way.

The owner runs this file by its path with `python -I -S`. The file imports nothing of this package, so it starts in
about 20 ms.

The owner holds the write end of a pipe; the read end is the stdin of this process. The kernel closes the write end when
the owner closes it, exits or is killed with SIGKILL. Then the supervisor sends SIGTERM to the server, which flushes and
syncs its append-only file. The owner uses a pipe and not a parent-death signal, because

- the signal fires when the *thread* that forked ends, not the process: a server opened from a short-lived thread would
  die at once;
- the signal is set between fork and exec, where a program with threads may run no Python (`preexec_fn` can deadlock);
- the signal exists only on Linux.

This process has one thread, so here the signal is safe: on Linux the server gets SIGTERM when the *supervisor* is
killed. Elsewhere the server keeps running after a killed supervisor; the next `open` of the folder finds and uses it.

Invariant: the server and this process hold an exclusive flock on the pid file as long as one of them lives. The kernel
releases the lock when they die in any way. So a stale pid file, or a reused pid in it, never looks like a server.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import sys
import time
from pathlib import Path

GRACE_S = 15.0  # above Valkey's `shutdown-timeout` (10 s), the time it waits for lagging replicas
PR_SET_PDEATHSIG = 1  # linux/prctl.h
NOT_EXECUTABLE = 127  # the exit code of a shell when it cannot execute a program
OCCUPIED = 75  # EX_TEMPFAIL: another server holds the pid file
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def supervise(pid_file: str, record: str, socket_path: str, command: list[str]) -> int:
    """Run `command` until it ends or the owner is gone. Returns its exit code.

    Args:
        pid_file: locked and written (`<pid>` and `record`) before the server starts, emptied before the server is
            stopped.
        record: the lines below the pid.
        socket_path: removed at the end, together with its folder when the folder is empty.
        command: the server and its arguments.
    """
    os.umask(0o077)  # append-only files hold users' payloads
    pid_fd = os.open(pid_file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(pid_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.stderr.write(f"another server holds {pid_file}\n")
        return OCCUPIED
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    supervisor_pid = os.getpid()
    server_pid = os.fork()
    if server_pid == 0:
        _become_server(pid_fd, record, command, libc, supervisor_pid)
    try:
        # After the fork: a SIGTERM that reaches the child before its exec must end the child; it must not be caught.
        return _watch(server_pid, _wake_on_signals(), pid_fd)
    finally:
        os.ftruncate(pid_fd, 0)
        Path(socket_path).unlink(missing_ok=True)
        try:
            Path(socket_path).parent.rmdir()
        except OSError:  # the folder has a file of another program, which must stay
            sys.stderr.write(f"left {socket_path}'s folder in place: not empty\n")


def _wake_on_signals() -> int:
    """Turn signals into bytes on a pipe, so that one `select` waits for all events. Returns the read end."""
    wake, signalled = os.pipe()
    os.set_blocking(signalled, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(signalled)
    for number in (signal.SIGCHLD, *STOP_SIGNALS):
        signal.signal(number, lambda *_: None)
    return wake


def _become_server(pid_fd: int, record: str, command: list[str], libc: ctypes.CDLL | None, supervisor_pid: int) -> None:
    """In the child: write the pid file, ask for SIGTERM when the supervisor ends, become the server. Never returns."""
    try:
        os.ftruncate(pid_fd, 0)
        os.pwrite(pid_fd, os.fsencode(f"{os.getpid()}\n{record}"), 0)
        os.set_inheritable(pid_fd, True)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if libc is not None:
            libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM))
        if os.getppid() == supervisor_pid:  # otherwise the supervisor died before prctl took effect
            os.execv(command[0], command)  # noqa: S606  # no shell wanted
    except OSError as error:
        os.write(2, f"cannot execute {command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(NOT_EXECUTABLE)


def _watch(server_pid: int, wake: int, pid_fd: int) -> int:
    """Wait for the end of the server. Stop the server when the owner is gone or a stop signal comes."""
    kill_at: float | None = None
    owner = [0]
    while True:
        ended, status = os.waitpid(server_pid, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        timeout_s = None if kill_at is None else max(0.0, kill_at - time.monotonic())
        ready, _, _ = select.select([*owner, wake], [], [], timeout_s)
        stop = bool(owner) and 0 in ready  # the owner never writes, so "readable" means end of file
        if wake in ready:
            stop = any(number in STOP_SIGNALS for number in os.read(wake, 256)) or stop
        if stop and kill_at is None:
            owner = []
            os.ftruncate(pid_fd, 0)  # this comes first: a process that reads an empty record waits for the lock
            os.kill(server_pid, signal.SIGTERM)
            kill_at = time.monotonic() + GRACE_S
        elif kill_at is not None and time.monotonic() >= kill_at:
            os.kill(server_pid, signal.SIGKILL)  # the server is stopped, or runs an endless script
            kill_at = time.monotonic() + GRACE_S


if __name__ == "__main__":
    sys.exit(supervise(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]))

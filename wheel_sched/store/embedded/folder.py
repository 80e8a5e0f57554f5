"""The data folder: its files, its two locks, and the record of the server that runs over it.

- `EmbeddedServer.open` holds `open.lock`: of several processes that open at once, one starts the server and the others
  find it.
- The server itself locks `server.pid` as long as it runs (see `supervisor`). "Locked" means "a server runs over this
  folder", so no process has to trust a pid.

An explicit LOCK_UN releases a lock. To close the file is not enough: a child that another thread forks at this moment
inherits the descriptor, and would keep the lock. flock is local: don't put the folder on a network file system.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from wheel_sched.errors import EmbeddedServerError

if sys.platform != "win32":
    import fcntl

POLL_S = 0.002
SOCKET_PATH_LIMIT = 100  # sun_path: 108 bytes on Linux, 104 on macOS, with the closing NUL
LOG_ROTATE_BYTES = 8 * 1024 * 1024
ALTERNATIVES = "Use a server of your own (redis://...) or the memory store instead."


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """The content of `server.pid`, one value per line (as in PostgreSQL's postmaster.pid). `port` None: no TCP port."""

    pid: int
    socket_path: Path
    port: int | None
    fsync: str

    @staticmethod
    def lines(socket_path: Path, port: int | None, fsync: str) -> str:
        return f"{socket_path}\n{port or 0}\n{fsync}\n"

    @classmethod
    def parse(cls, text: str) -> ServerRecord | None:
        """Read a record from the text of `server.pid`. None: incomplete, as while a server starts or stops."""
        lines = text.split("\n")
        if len(lines) != 5 or not (lines[0].isdigit() and lines[2].isdigit()):
            return None
        return cls(pid=int(lines[0]), socket_path=Path(lines[1]), port=int(lines[2]) or None, fsync=lines[3])


class DataFolder:
    """Paths and locks of one folder. Any thread may use it; instances are independent."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.pid_path = path / "server.pid"
        self.log_path = path / "server.log"
        self.config_path = path / "server.conf"

    @classmethod
    def prepare(cls, path: str | os.PathLike[str]) -> DataFolder:
        """Make the folder (0700) when it is absent. An existing folder keeps its mode."""
        try:
            folder = cls(Path(path).expanduser().absolute())
            if "\n" in str(folder.path):
                raise EmbeddedServerError(f"expected a folder without line breaks, got: {str(path)!r}")
            folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.pid_path.touch(mode=0o600)
        except OSError as error:
            raise cannot_write(path, error) from error
        return folder

    @contextlib.contextmanager
    def opening(self, deadline_s: float) -> Iterator[None]:
        """Hold `open.lock` in the `with` block. Wait for other openers until `deadline_s` on the monotonic clock.

        Raises:
            EmbeddedServerError: another process holds the lock at the deadline, or the folder cannot be written.
        """
        try:
            fd = os.open(self.path / "open.lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        try:
            while not _try_lock(fd):
                if time.monotonic() >= deadline_s:
                    raise EmbeddedServerError(
                        f"another process is still opening {self.path}; nothing was started. "
                        "Try again with a larger timeout_s."
                    )
                time.sleep(POLL_S)
            try:
                yield
            finally:
                fcntl.flock(fd, fcntl.LOCK_UN)
        finally:
            os.close(fd)

    def occupied(self) -> bool:
        """Whether a server runs over the folder. Call this only in `opening`: it locks `server.pid` for an instant."""
        fd = os.open(self.pid_path, os.O_RDWR)
        try:
            if not _try_lock(fd):
                return True
            fcntl.flock(fd, fcntl.LOCK_UN)
            return False
        finally:
            os.close(fd)

    def record(self) -> ServerRecord | None:
        """The record of the server over this folder; None when it is not written yet. Valid only while `occupied`."""
        return ServerRecord.parse(self.pid_path.read_text(encoding="utf-8", errors="surrogateescape"))

    def clear_record(self) -> None:
        """Remove the record of a server that was killed with its supervisor. Call it only when the server has ended."""
        self.pid_path.write_text("")

    def make_socket_path(self) -> Path:
        """The path of the socket: in `run/` of the folder.

        If this path would be too long, the socket is in a new private temporary folder.
        """
        preferred = self.path / "run" / "server.sock"
        if len(os.fsencode(preferred)) <= SOCKET_PATH_LIMIT:
            preferred.parent.mkdir(mode=0o700, exist_ok=True)
            preferred.parent.chmod(0o700)
            preferred.unlink(missing_ok=True)  # left by a server that was killed
            return preferred
        private = Path(tempfile.mkdtemp(prefix="wheel-sched-"))  # 0700
        if len(os.fsencode(private)) + 12 > SOCKET_PATH_LIMIT:
            private.rmdir()
            private = Path(tempfile.mkdtemp(prefix="wheel-sched-", dir="/tmp"))  # 0700, random name
        return private / "server.sock"

    def start_log(self) -> int:
        """Rename the log to `server.log.1` if it is large. Returns the offset of the next server's first line."""
        if self.log_path.exists() and self.log_path.stat().st_size > LOG_ROTATE_BYTES:
            shutil.move(self.log_path, self.log_path.with_name("server.log.1"))
        self.log_path.touch(mode=0o600)
        return self.log_path.stat().st_size

    def log_since(self, offset: int) -> str:
        """The text of the log after `offset`."""
        with self.log_path.open("rb") as log:
            log.seek(offset)
            return log.read().decode(errors="replace")


def cannot_write(path: str | os.PathLike[str], error: OSError) -> EmbeddedServerError:
    """Make the error for a folder that cannot be written."""
    return EmbeddedServerError(
        f"cannot write to the data folder {os.fspath(path)}: {error.strerror or error}. Nothing was started. "
        f"Choose a folder this user may write to, on a disk with space. {ALTERNATIVES}"
    )


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

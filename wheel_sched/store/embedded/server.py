"""`EmbeddedServer`: start the server of a data folder, or find it running. The process that started it stops it.

Invariant: at most one server per data folder, on one machine. Cost: about 60 ms to start over an empty folder (20 for
the supervisor, 30 for Valkey's clock calibration), plus the loading of the stored data; about 1 ms to find a server.
Any thread may call anything; the server does not depend on the thread that opened it (see `supervisor`).

Life time: a server started here lives until `close()` or until this process ends in any way, SIGKILL included. Then
other processes that use the server lose their connections. The first of them that calls `take_over` starts a new server
over the same append-only file, and the others find the new server. Stores over an embedded server call `take_over`
themselves (`redis.embedded_backend`).

Forked children may connect but never own the server: neither their `close()` nor their end stops the parent's server.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self
from urllib.parse import quote

from wheel_sched.errors import EmbeddedServerError
from wheel_sched.store.embedded.binary import python, require_posix, server_binary
from wheel_sched.store.embedded.diagnosis import failed_start
from wheel_sched.store.embedded.folder import POLL_S, DataFolder, ServerRecord, cannot_write
from wheel_sched.store.embedded.probe import ask, ping
from wheel_sched.store.embedded.settings import Fsync, ServerSettings

_SUPERVISOR = Path(__file__).with_name("supervisor.py")


class EmbeddedServer:
    """A handle on the one server of a data folder. Make it with `EmbeddedServer.open`."""

    def __init__(
        self, folder: DataFolder, record: ServerRecord, owned: _OwnedProcess | None, settings: ServerSettings
    ) -> None:
        self._folder = folder
        self._record = record
        self._owned = owned
        self._settings = settings
        self._closed = False
        self._changing = threading.Lock()

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str],
        *,
        fsync: Fsync = "everysec",
        port: int | None = None,
        extra: Mapping[str, str] = MappingProxyType({}),
        timeout_s: float = 30.0,
    ) -> EmbeddedServer:
        """Start a server over `folder`, or use the one that runs there. On return the server answers PING.

        Args:
            folder: the data folder; made when absent. Not on a network file system.
            fsync: when writes reach the disk: "always", "everysec" or "no".
            port: also listen on this TCP port of the loopback, without a password. Defaults to None.
            extra: more lines of `valkey.conf`; ignored when the server runs already.
            timeout_s: how long to wait for another process that opens the folder, or for a server that gives no
                answer. The time in which a server that this call starts loads its data does not count.

        Raises:
            ConfigError: an argument is wrong; nothing was started.
            EmbeddedServerError: the server cannot be started here, or the running server has weaker settings.
        """
        require_posix()
        settings = ServerSettings(fsync=fsync, port=port, extra=extra)
        if not Path(folder).exists():
            server_binary()  # checked first: a missing server must not leave a folder behind
        data = DataFolder.prepare(folder)
        deadline_s = time.monotonic() + timeout_s
        with data.opening(deadline_s):
            running = _find(data, deadline_s)
            if running is None:
                return cls._start(data, settings, timeout_s)
        unmet = settings.unmet_by(running.fsync, running.port)
        if unmet:
            raise EmbeddedServerError(
                f"the server that runs in {data.path} (pid {running.pid}) was started with other settings: "
                f"{'; '.join(unmet)}. It was left alone: open it with its own settings, or close it first."
            )
        return cls(data, running, None, settings)

    @classmethod
    def _start(cls, data: DataFolder, settings: ServerSettings, timeout_s: float) -> EmbeddedServer:
        binary = server_binary()
        try:
            socket_path = data.make_socket_path()
            data.clear_record()
            data.config_path.touch(mode=0o600)
            data.config_path.write_text(settings.render(data.path, socket_path))
            log_offset = data.start_log()
        except OSError as error:
            raise cannot_write(data.path, error) from error
        record = ServerRecord.lines(socket_path, settings.port, settings.fsync)
        owned = _OwnedProcess(data, record, socket_path, [str(binary), str(data.config_path)])
        try:
            return cls(data, owned.wait_until_up(timeout_s, log_offset), owned, settings)
        except BaseException:
            owned.stop()
            raise

    @property
    def url(self) -> str:
        """The address for redis-py's `from_url`: `unix:///path?db=0`."""
        return f"unix://{quote(os.fsencode(self.socket_path))}?db=0"

    @property
    def socket_path(self) -> Path:
        return self._record.socket_path

    @property
    def port(self) -> int | None:
        """The loopback TCP port, None without one."""
        return self._record.port

    @property
    def pid(self) -> int:
        """The server's process id (not the supervisor's)."""
        return self._record.pid

    @property
    def folder(self) -> Path:
        return self._folder.path

    @property
    def started_here(self) -> bool:
        """Whether this handle started the server, in this process, and therefore stops it."""
        return self._owned is not None and self._owned.owner_pid == os.getpid()

    @property
    def alive(self) -> bool:
        """Whether the server answers; True also when it answers that it is still loading its data."""
        return ping(self.socket_path) != "away"

    def take_over(self, timeout_s: float = 30.0) -> bool:
        """Use the server that runs over the folder now. Start one if none runs.

        A new server gets the stronger settings of the last server and of this handle; `extra` comes from this handle.

        Args:
            timeout_s: as in `open`.

        Returns:
            Whether the server is another one than before. False: the old one still runs, this handle was closed, or
            this process ends.

        Raises:
            EmbeddedServerError: no server runs, and none can be started; or the running one has weaker settings.
        """
        with self._changing:
            if self._closed or _ending.is_set():
                return False
            before, last = self._owned, self._record
            if self.alive:
                self._record = self._folder.record() or last  # another process may have started a server first
                return self._record != last
            settings = self._settings.at_least(last.fsync, last.port)
            found = EmbeddedServer.open(
                self.folder, fsync=settings.fsync, port=settings.port, extra=settings.extra, timeout_s=timeout_s
            )
            self._record, self._owned = found._record, found._owned
            if before is not None and before is not self._owned:
                before.stop()  # the old server has ended: wait for its supervisor too
            return True

    def close(self) -> None:
        """Stop the server if this handle started it. The server first syncs its append-only file. Idempotent."""
        with self._changing:
            if self.started_here and not self._closed:
                with contextlib.suppress(OSError):  # faster than SIGTERM, on which the server acts only later
                    ask(self.socket_path, "SHUTDOWN")
            self._closed = True
            if self._owned is not None:
                self._owned.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "started here" if self.started_here else "found running"
        return f"<EmbeddedServer pid={self.pid} folder={str(self.folder)!r} {state}>"


class _OwnedProcess:
    """The supervisor process and the write end of the pipe that keeps its server alive."""

    def __init__(self, data: DataFolder, record: str, socket_path: Path, command: list[str]) -> None:
        self._data = data
        self.owner_pid = os.getpid()
        self._lock = threading.Lock()
        program = [python(), "-I", "-S", str(_SUPERVISOR), str(data.pid_path), record, str(socket_path), *command]
        stdin, self._lifeline = os.pipe()
        try:
            with data.log_path.open("ab") as log:
                # a new session: Ctrl-C in the terminal must reach the owner and not the server
                self._process = subprocess.Popen(
                    program, stdin=stdin, stdout=log, stderr=log, cwd=data.path, start_new_session=True
                )
        except OSError as error:
            os.close(self._lifeline)
            raise EmbeddedServerError(f"cannot start {program[0]}: {error.strerror or error}") from error
        finally:
            os.close(stdin)
        _owned.add(self)

    def wait_until_up(self, timeout_s: float, log_offset: int) -> ServerRecord:
        deadline_s = time.monotonic() + timeout_s
        while True:
            record = self._data.record()
            state = "away" if record is None else ping(record.socket_path)
            if record is not None and state == "up":
                return record
            if self._process.poll() is not None:
                raise failed_start(self._data, self._process.returncode, self._data.log_since(log_offset))
            if state == "loading":
                deadline_s = time.monotonic() + timeout_s
            elif time.monotonic() >= deadline_s:
                raise EmbeddedServerError(
                    f"the embedded server gave no answer for {timeout_s:g} s and was stopped; see {self._data.log_path}"
                )
            time.sleep(POLL_S)

    def stop(self) -> None:
        """Close the pipe to the supervisor, and wait until it has stopped the server (it kills a server that hangs)."""
        with self._lock:
            if self in _owned:
                _owned.discard(self)
                os.close(self._lifeline)
            self._process.wait()

    def forget(self) -> None:
        """In a forked child: close our copy of the pipe, because it must not keep the parent's server alive."""
        self._lock = threading.Lock()  # another thread of the parent may have held the lock
        os.close(self._lifeline)
        self._process.returncode = 0  # the supervisor is not a child of this process: do not wait


# Strong references: when the last handle is freed, the server must stay for code that has its URL.
_owned: set[_OwnedProcess] = set()


def _find(data: DataFolder, deadline_s: float) -> ServerRecord | None:
    """Wait until the server of the folder is up, and return its record. None: no server runs over the folder."""
    while data.occupied():
        record = data.record()
        if record is not None and ping(record.socket_path) == "up" and data.record() == record:
            return record
        if time.monotonic() >= deadline_s:
            raise EmbeddedServerError(
                f"a server (pid {record.pid if record else 'unknown'}) holds {data.path} but does not answer. It was "
                "left alone: stop it, or wait until it has loaded its data, and open the folder again."
            )
        time.sleep(POLL_S)
    return None


_ending = threading.Event()  # set while this process ends: from then on it starts no server


def _stop_all() -> None:
    _ending.set()
    for process in list(_owned):
        process.stop()


def _forget_all() -> None:
    for process in list(_owned):
        process.forget()
    _owned.clear()


atexit.register(_stop_all)
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forget_all)

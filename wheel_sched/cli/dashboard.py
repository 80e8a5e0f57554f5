"""`wheel-sched dashboard` serves the dashboard. `wheel-sched dashboard-password` makes a line of its password file."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import secrets
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import click
import uvicorn

from wheel_sched.cli.logs import set_up_logs
from wheel_sched.cli.options import Session, pass_session
from wheel_sched.cli.output import note, say
from wheel_sched.dashboard import DashboardApp, DashboardConfig, PasswordFile, everyone
from wheel_sched.dashboard.passwords import password_line, with_line
from wheel_sched.dashboard.rights import RIGHTS, Right
from wheel_sched.dashboard.security import LOOPBACK
from wheel_sched.errors import ConfigError, NotDone
from wheel_sched.management.opening import opened

_GRACE_S = 3  # how long an open request may take when the program ends
_rights = click.Choice(RIGHTS)


@click.command()
@click.option(
    "--listen",
    default="127.0.0.1:8500",
    metavar="HOST:PORT",
    show_default=True,
    help="Address to listen on; port 0: any free port.",
)
@click.option("--password-file", metavar="FILE", help="The users who may sign in, see dashboard-password.")
@click.option(
    "--right",
    type=_rights,
    help="The greatest right of any visitor (default: operate; with --password-file: the right in that file).",
)
@click.option("--show-payloads", is_flag=True, help="Show payloads, keys and header values.")
@click.option("--secret-file", metavar="FILE", help="A secret that signs sessions, so that they outlive a restart.")
@click.option("--root-path", default="", metavar="PATH", help="The path that a reverse proxy cuts off, such as /wheel.")
@pass_session
def dashboard(
    session: Session,
    listen: str,
    password_file: str | None,
    right: Right | None,
    show_payloads: bool,
    secret_file: str | None,
    root_path: str,
) -> None:
    """Serve the dashboard: what waits, what died and why, with buttons to retry and to replay.

    Without --password-file everyone on this machine may use it, and it listens on loopback addresses only.

    \b
    Examples:
      wheel-sched dashboard
      wheel-sched dashboard --right read --listen 127.0.0.1:9000
      wheel-sched dashboard --listen 0.0.0.0:8500 --password-file users --right delete
    """
    set_up_logs(session.settings.log_format, "warning")
    host, port = _address(listen)
    if password_file is None and not _is_loopback(host):
        raise ConfigError(
            f"expected --password-file with --listen {listen}: other machines reach this address, and without a "
            "password everyone could use the dashboard; nothing was started; make a file with `wheel-sched "
            "dashboard-password NAME --file FILE`, or listen on 127.0.0.1"
        )
    if root_path and (not root_path.startswith("/") or root_path.endswith("/")):
        raise ConfigError(f"expected --root-path to be a path such as /wheel, got: {root_path!r}; nothing was started")
    greatest: Right = right or ("operate" if password_file is None else "delete")
    access = everyone(greatest) if password_file is None else PasswordFile(password_file)
    secret = None if secret_file is None else _secret(secret_file)
    with _listening(host, port) as sock, opened(session.settings) as store:
        app = DashboardApp(
            store,
            session.loaded,
            access,
            config=DashboardConfig(right=greatest, show_payloads=show_payloads),
            hosts=LOOPBACK | {host} if password_file is None else None,  # against DNS rebinding
            secret=secret,
        )
        _serve(app, sock, host, root_path)


class _Server(uvicorn.Server):
    """A server that ends the live updates of open pages before it waits for open responses."""

    def __init__(self, config: uvicorn.Config, app: DashboardApp) -> None:
        super().__init__(config)
        self._app = app

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._app.dashboard.ending.set()
        super().handle_exit(sig, frame)


def _serve(app: DashboardApp, sock: socket.socket, host: str, root_path: str) -> None:
    """Serve until SIGTERM, or until Ctrl-C, which becomes a KeyboardInterrupt."""
    config = uvicorn.Config(
        app,
        root_path=root_path,
        access_log=False,
        server_header=False,
        log_level="warning",
        log_config=None,  # the handlers of `set_up_logs` write its lines too
        timeout_graceful_shutdown=_GRACE_S,
    )
    signal.signal(signal.SIGTERM, lambda *_: None)  # uvicorn shuts down, and then sends itself the signal once more
    shown = f"[{host}]" if ":" in host else host
    say(f"the dashboard is at http://{shown}:{sock.getsockname()[1]}{root_path}/ (Ctrl-C ends it)")
    sys.stdout.flush()
    _Server(config, app).run(sockets=[sock])


def _address(listen: str) -> tuple[str, int]:
    host, colon, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not (port.isascii() and port.isdigit() and len(port) < 6 and int(port) < 65536):
        raise ConfigError(f"expected --listen to be HOST:PORT, such as 127.0.0.1:8500, got: {listen!r}")
    return host, int(port)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@contextlib.contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    """Open the port before the store, so that a port in use is an error at once."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        sock = socket.create_server(address[:2], family=family)
    except OSError as error:
        reason = error.strerror or str(error)
        raise NotDone(
            f"cannot listen on {host}:{port}: {reason}; nothing was started; choose another port with --listen, or end "
            "the program that uses this one"
        ) from error
    with sock:
        yield sock


def _secret(file: str) -> bytes:
    try:
        status = Path(file).stat()
        secret = Path(file).read_bytes().strip()
    except OSError as error:
        raise ConfigError(
            f"expected {file} to be a readable file with a secret, got: {error.strerror}; nothing was started"
        ) from error
    if status.st_mode & 0o077:
        raise ConfigError(f"others may read or change {file}: nothing was started; run `chmod 600 {file}`")
    return secret


@click.command("dashboard-password")
@click.argument("name")
@click.option("--right", type=_rights, default="read", show_default=True, help="The greatest right of this user.")
@click.option("--file", metavar="FILE", help="Write the line to this file, and replace the line of the same user.")
@click.option("--stdin", "from_stdin", is_flag=True, help="Read the password from stdin instead of asking for it.")
def dashboard_password(name: str, right: Right, file: str | None, from_stdin: bool) -> None:
    """Make the line of a user for the password file of the dashboard.

    The file holds hashes and no passwords. A running dashboard reads it again when it has changed.

    \b
    Examples:
      wheel-sched dashboard-password ada --right operate --file users
      pwgen 20 1 | wheel-sched dashboard-password grafana --stdin >> users
    """
    line = password_line(name, right, _password(from_stdin))
    if file is None:
        say(line)
        return
    _write(Path(file), line)
    note(f"{name} may {right}; {file} can be read by its owner only")


def _password(from_stdin: bool) -> str:
    if from_stdin:
        return sys.stdin.readline().rstrip("\r\n")
    if not sys.stdin.isatty():
        raise click.UsageError("There is no terminal to ask for the password; nothing was written. Add --stdin.")
    password: Any = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    return str(password)


def _write(path: Path, line: str) -> None:
    """Write the line to the file. A reader sees the old file or the new one, and only the owner can read it."""
    target = path.resolve()
    before = target.read_text("utf-8") if target.exists() else ""
    made = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(with_line(before, line))
            file.flush()
            os.fsync(file.fileno())
        made.replace(target)
    except BaseException:
        made.unlink(missing_ok=True)
        raise

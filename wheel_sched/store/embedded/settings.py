"""The settings of the embedded server that a caller may choose, and the configuration file made from them.

The caller cannot change settings that a guarantee needs (append-only file, no eviction, no network, private socket): an
`extra` with one of them is refused, so nobody loses messages through a copied line of `valkey.conf`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from wheel_sched.errors import ConfigError

Fsync = Literal["always", "everysec", "no"]
_STRENGTH: Mapping[str, int] = {"no": 0, "everysec": 1, "always": 2}
_NAME = re.compile(r"[a-z][a-z0-9-]*")

# fmt: off
OWNED = frozenset((
    "aclfile", "appenddirname", "appendfilename", "appendfsync", "appendonly", "bind", "daemonize",
    "dbfilename", "dir", "include", "logfile", "maxmemory-policy", "no-appendfsync-on-rewrite", "pidfile",
    "port", "protected-mode", "rename-command", "requirepass", "save", "supervised", "tls-port", "unixsocket",
    "unixsocketperm", "user",
))
# fmt: on


def fsync_for(durability: str) -> Fsync:
    """The `fsync` setting that a server needs to keep a durability level."""
    return "always" if durability == "fsync" else "everysec"


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The settings of an embedded server that a caller chooses.

    Args:
        fsync: when writes reach the disk: before each batch of replies, each second, or when the kernel decides. A
            crash of the machine loses writes that are not synced. A crash of the server process loses none under
            "always"; otherwise it may lose the last 2 s, because the server holds back what it appends while a slow
            disk syncs. Defaults to "everysec".
        port: TCP port on the loopback, for tools that know no unix socket. It has no password: any local user may
            connect. Defaults to None (no TCP at all).
        extra: more lines of `valkey.conf`, name to value, each value as written in that file. Defaults to none.
    """

    fsync: Fsync = "everysec"
    port: int | None = None
    extra: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        problems = []
        if self.fsync not in get_args(Fsync):
            problems.append(f"expected fsync to be one of {', '.join(get_args(Fsync))}, got: {self.fsync!r}")
        if self.port is not None and not (type(self.port) is int and 1 <= self.port <= 65535):
            problems.append(f"expected port to be None or 1 to 65535, got: {self.port!r}")
        for name, value in self.extra.items():
            if not _NAME.fullmatch(name):
                problems.append(f"expected extra to have names as in valkey.conf, got: {name!r}")
            elif name in OWNED:
                problems.append(f"expected extra to leave {name!r} to the embedded server, got: {value!r}")
            if re.search(r"[\r\n\0]", str(value)):
                problems.append(f"expected extra[{name!r}] to be one line of text, got: {value!r}")
        if problems:
            raise ConfigError(problems)

    def render(self, folder: Path, socket_path: Path) -> str:
        """The text of `server.conf`. The server logs to stdout, and the caller connects stdout to `server.log`."""
        lines = [
            "# Written at each start; choose settings through EmbeddedServer.open.",
            f"dir {_quoted(folder)}",
            f"unixsocket {_quoted(socket_path)}",
            "unixsocketperm 700",
            f"port {self.port or 0}",
            "bind 127.0.0.1",
            "protected-mode yes",
            "daemonize no",
            "appendonly yes",
            f"appendfsync {self.fsync}",
            'save ""',
            "maxmemory-policy noeviction",
            *(f"{name} {value}" for name, value in self.extra.items()),
        ]
        return "\n".join(lines) + "\n"

    def at_least(self, fsync: str, port: int | None) -> ServerSettings:
        """The settings for a new server that replaces one that has ended. The arguments are those of the ended server.

        The result has the stronger of the two `fsync` settings. It has the ended server's port if `self.port` is None.
        """
        stronger: Fsync = self.fsync
        for name in get_args(Fsync):
            if name == fsync and _STRENGTH[name] > _STRENGTH[stronger]:
                stronger = name
        return ServerSettings(stronger, port if self.port is None else self.port, self.extra)

    def unmet_by(self, fsync: str, port: int | None) -> list[str]:
        """Which of these settings a running server with `fsync` and `port` does not meet, as texts for the user."""
        unmet = []
        if _STRENGTH.get(fsync, 0) < _STRENGTH[self.fsync]:
            unmet.append(f"expected fsync to be at least {self.fsync!r}, got: {fsync!r}")
        if self.port is not None and self.port != port:
            unmet.append(f"expected port to be {self.port}, got: {port}")
        return unmet


def _quoted(path: Path) -> str:
    """A path in the form of valkey.conf: bytes outside printable ASCII, quotes and backslashes as `\\xHH`."""
    plain = "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\x{b:02x}" for b in bytes(path))
    return f'"{plain}"'

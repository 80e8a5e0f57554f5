"""The password file: who may sign in to the dashboard, and with which right.

Each user has a line `name:right:scrypt$N$r$p$salt$hash`, with salt and hash in base64. A line that begins with # is a
comment. `wheel-sched dashboard-password` writes the line of a user. The file is read again when it has changed.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import secrets
import threading
from pathlib import Path
from typing import NamedTuple

from wheel_sched.dashboard.rights import RIGHTS, Right, Visitor
from wheel_sched.errors import ConfigError

_N, _R, _P = 2**14, 8, 1  # 16 MiB and about 50 ms for each password
_LONGEST = 1_000  # characters of a password
_NAME = re.compile(r"[\w.@+-]{1,60}")


class _Entry(NamedTuple):
    right: Right
    cost: tuple[int, int, int]
    salt: bytes
    hash: bytes

    @property
    def mark(self) -> str:
        return hashlib.sha256(self.salt + self.hash).hexdigest()[:16]


def password_line(name: str, right: Right, password: str) -> str:
    """The line of the password file for a user.

    Raises:
        ConfigError: the name, the right or the password cannot be used.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"expected a name of up to 60 letters, digits or . @ + - _, got: {name!r}; nothing was written"
        )
    if right not in RIGHTS:
        raise ConfigError(f"expected a right of read, operate or delete, got: {right!r}; nothing was written")
    if not 8 <= len(password) <= _LONGEST:
        raise ConfigError(f"expected a password of 8 to {_LONGEST:,} characters; nothing was written")
    salt = secrets.token_bytes(16)
    texts = (base64.b64encode(part).decode() for part in (salt, _hashed(password, salt, (_N, _R, _P))))
    return f"{name}:{right}:scrypt${_N}${_R}${_P}${'$'.join(texts)}"


def _hashed(password: str, salt: bytes, cost: tuple[int, int, int]) -> bytes:
    n, r, p = cost
    return hashlib.scrypt(password.encode("utf-8", "surrogatepass"), salt=salt, n=n, r=r, p=p, maxmem=2**26, dklen=32)


class PasswordFile:
    """The users of a password file. Thread-safe.

    Args:
        path: the file. It must exist, and only its owner may be able to change it.

    Raises:
        ConfigError: the file is unreadable, others may write to it, or a line has another form. The error quotes no
            line.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._lock = threading.Lock()
        self._seen: tuple[int, ...] = ()
        self._entries: dict[str, _Entry] = {}
        self._load()

    def check(self, name: str, password: str) -> Visitor | None:
        """The visitor of this name; None if the name is unknown or the password is wrong. Takes about 50 ms.

        An unknown name takes as long as a wrong password, so the time does not tell which names exist.
        """
        with self._lock:
            self._load()
            entry = self._entries.get(name)
            like = next(iter(self._entries.values()), None)
        unknown = _Entry("read", (_N, _R, _P) if like is None else like.cost, b"\0" * 16, b"")
        cost, salt, wanted = (entry or unknown).cost, (entry or unknown).salt, (entry or unknown).hash
        fits = hmac.compare_digest(_hashed(password[:_LONGEST], salt, cost), wanted)
        return Visitor(name, entry.right) if entry is not None and fits else None

    def mark(self, name: str) -> str:
        """A text that changes when this user gets another password. The text does not reveal the password."""
        with self._lock:
            self._load()
            entry = self._entries.get(name)
        return "" if entry is None else entry.mark

    def visitor(self, name: str, mark: str) -> Visitor | None:
        """The visitor of this name, for a session that began when `mark` was the user's mark.

        None if the file no longer has this user, or if the user has got another password since.
        """
        with self._lock:
            self._load()
            entry = self._entries.get(name)
        return None if entry is None or mark != entry.mark else Visitor(name, entry.right)

    def _load(self) -> None:
        try:
            status = self._path.stat()
            seen = status.st_mtime_ns, status.st_size, status.st_ino, status.st_mode
            if seen == self._seen:
                return
            text = self._path.read_text("utf-8")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "bytes that are not UTF-8"
            raise ConfigError(f"expected {self._path} to be a readable password file, got: {reason}") from error
        if status.st_mode & 0o022:
            raise ConfigError(f"others may write to {self._path}: nobody was let in; run `chmod go-w {self._path}`")
        entries: dict[str, _Entry] = {}
        problems = []
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip() and not line.startswith("#"):
                name, entry = _read(line.strip())
                if entry is None:
                    problems.append(
                        f"{self._path}, line {number}: expected name:right:scrypt$..., as `wheel-sched "
                        "dashboard-password` writes it"
                    )
                elif name in entries:
                    problems.append(f"{self._path}, line {number}: expected each name once")
                else:
                    entries[name] = entry
        if problems:
            raise ConfigError(problems)
        self._entries, self._seen = entries, seen


def with_line(text: str, line: str) -> str:
    """The text of a password file after this line was added. It replaces the line of the same user."""
    name = line.partition(":")[0]
    others = [one for one in text.splitlines() if one.startswith("#") or one.strip().partition(":")[0] != name]
    return "\n".join([*others, line]) + "\n"


def _read(line: str) -> tuple[str, _Entry | None]:
    name, _, rest = line.partition(":")
    right, _, mark = rest.partition(":")
    kind, *parts = mark.split("$")
    known: Right | None = next((one for one in RIGHTS if one == right), None)
    if not _NAME.fullmatch(name) or known is None or kind != "scrypt" or len(parts) != 5:
        return name, None
    try:
        n, r, p = map(int, parts[:3])
        salt, wanted = (base64.b64decode(part, validate=True) for part in parts[3:])
    except ValueError:
        return name, None
    if n not in (2**13, 2**14, 2**15) or r != 8 or not 1 <= p <= 4:  # other costs could use up the memory
        return name, None
    return name, _Entry(known, (n, r, p), salt, wanted)

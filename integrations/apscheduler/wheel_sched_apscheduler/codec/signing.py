"""Signatures of stored jobs: HMAC-SHA256 over id and body. Only a process with a secret can write a new job.

The secret comes from the jobstore's setting `secret`, or from the environment, `WHEEL_SCHED_APS_SECRET`. For a store in
a folder (`embedded:FOLDER`), this module makes a secret at the first use and keeps it beside the data, in a file that
only its owner can read. Whoever can write to a store behind a URL can also read everything in it, so no secret can be
kept there: the user must give one.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from wheel_sched.errors import ConfigError, StoreError

ENVIRONMENT = "WHEEL_SCHED_APS_SECRET"
FILE = "jobs.secret"
_EMBEDDED = "embedded:"
_DEFAULT_FOLDER = ".wheel-sched"  # where the embedded server lives when no folder is named
_warned = threading.Event()
Secret = str | bytes | Sequence[str | bytes] | Callable[[], bytes]  # a function returns the secret
_LENGTH = 32
MARK = b"s"


class BadSignature(StoreError):
    """A stored job has no valid signature. The job was not read."""


class Signer:
    """Signs with the first secret, and accepts signatures of every secret.

    Args:
        given: at least one secret, each of at least 16 bytes. To change the secret, put the new one in front, and drop
            the old one when the store has no more jobs that it has signed. A text may hold several secrets, "new,old".
            A function that returns a secret is called when a secret is first needed.

    Raises:
        ConfigError: a secret is missing or too short. With a function, `sign` and `verify` raise it.
    """

    def __init__(self, given: Secret) -> None:
        self._source = given if callable(given) else None
        self._secrets: list[bytes] = []
        if not callable(given):
            self._take(_listed(given) if isinstance(given, str | bytes) else list(given))

    def _take(self, given: Sequence[str | bytes]) -> None:
        self._secrets = [secret.encode() if isinstance(secret, str) else bytes(secret) for secret in given]
        if not self._secrets or any(len(secret) < 16 for secret in self._secrets):
            raise ConfigError(
                "expected each secret to be at least 16 bytes, with commas between several; nothing was opened"
            )

    def __repr__(self) -> str:
        return f"<Signer secrets={len(self._secrets)}>"

    def _known(self) -> list[bytes]:
        if not self._secrets and self._source is not None:
            self._take([self._source()])
        return self._secrets

    def sign(self, job_id: str, body: bytes) -> bytes:
        """Put the signature in front of the body."""
        return MARK + _mac(self._known()[0], job_id, body) + body

    def verify(self, job_id: str, signed: bytes) -> bytes:
        """Check the signature and return the body without it.

        Raises:
            BadSignature: none of the secrets has signed the body for this job.
        """
        if signed[:1] == MARK and len(signed) > _LENGTH:
            mac, body = signed[1 : _LENGTH + 1], signed[_LENGTH + 1 :]
            if any(hmac.compare_digest(mac, _mac(secret, job_id, body)) for secret in self._known()):
                return body
            raise BadSignature("its signature is wrong: it was changed, moved from another id, or signed elsewhere")
        raise BadSignature("it is not signed, and this store reads signed jobs only")


def _listed(given: str | bytes) -> list[str | bytes]:
    """The secrets in a text, separated by commas, without blanks around them. Bytes are always one secret."""
    if isinstance(given, bytes) or "," not in given:
        return [given]
    return [secret.strip() for secret in given.split(",")]


def _mac(secret: bytes, job_id: str, body: bytes) -> bytes:
    raw = job_id.encode("utf-8", "surrogateescape")
    return hmac.digest(secret, b"%d:" % len(raw) + raw + body, "sha256")


def secret_for(target: Any) -> Secret | None:
    """The secret for a store whose settings have none: from the environment or the folder. None = do not sign jobs.

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
    """The secret of a data folder. Makes it if there is none; processes that do so at the same time get the same one.

    Raises:
        ConfigError: the secret cannot be read or written, or has less than 16 bytes.
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
                    os.link(draft, path)  # makes the whole file in one step, and fails if the file exists
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


def warn_once(logger: Any, allowed: Any) -> None:
    """Warn once in a process that its shared jobs are not signed."""
    if _warned.is_set():
        return
    _warned.set()
    logger.warning(
        "Jobs in this store are not signed: whoever can write to it chooses what runs, among %s. Give every process "
        "that adds or runs jobs the same secret=... or %s",
        allowed,
        ENVIRONMENT,
    )

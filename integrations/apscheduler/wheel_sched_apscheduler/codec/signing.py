"""Signatures of stored jobs: HMAC-SHA256 over id and body, so that only holders of the secret can make or move one."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence

from wheel_sched.errors import ConfigError, StoreError

Secret = str | bytes | Sequence[str | bytes] | Callable[[], bytes]  # one, several, or where to get it
_LENGTH = 32
MARK = b"s"


class BadSignature(StoreError):
    """A stored job without a valid signature; it was not read."""


class Signer:
    """Signs with the first secret, accepts each.

    Args:
        secrets: at least one, each of at least 16 bytes; put a new one in front and drop the old one when no job
            signed with it is left. As one text, as a file of settings or the environment has it: "new,old". Or where to
            get one when it is first needed.

    Raises:
        ConfigError: a secret is missing or too short.
    """

    def __init__(self, secrets: Secret) -> None:
        self._source = secrets if callable(secrets) else None
        self._secrets: list[bytes] = []
        if not callable(secrets):
            self._take(_listed(secrets) if isinstance(secrets, str | bytes) else list(secrets))

    def _take(self, given: Sequence[str | bytes]) -> None:
        self._secrets = [secret.encode() if isinstance(secret, str) else bytes(secret) for secret in given]
        if not self._secrets or any(len(secret) < 16 for secret in self._secrets):
            raise ConfigError(
                "expected secret to be at least 16 bytes, and so each of several, between commas; nothing was opened"
            )

    def __repr__(self) -> str:
        return f"<Signer secrets={len(self._secrets)}>"

    def _known(self) -> list[bytes]:
        if not self._secrets and self._source is not None:
            self._take([self._source()])
        return self._secrets

    def sign(self, job_id: str, body: bytes) -> bytes:
        """The body behind its signature."""
        return MARK + _mac(self._known()[0], job_id, body) + body

    def verify(self, job_id: str, signed: bytes) -> bytes:
        """The body.

        Raises:
            BadSignature: it was not signed for this job with a secret known here.
        """
        if signed[:1] == MARK and len(signed) > _LENGTH:
            mac, body = signed[1 : _LENGTH + 1], signed[_LENGTH + 1 :]
            if any(hmac.compare_digest(mac, _mac(secret, job_id, body)) for secret in self._known()):
                return body
            raise BadSignature("its signature is wrong: it was changed, moved from another id, or signed elsewhere")
        raise BadSignature("it is not signed, and this store reads signed jobs only")


def _listed(secrets: str | bytes) -> list[str | bytes]:
    """The secrets of a text: a comma stands between them, blanks around it do not count; bytes are one."""
    if isinstance(secrets, bytes) or "," not in secrets:
        return [secrets]
    return [secret.strip() for secret in secrets.split(",")]


def _mac(secret: bytes, job_id: str, body: bytes) -> bytes:
    raw = job_id.encode("utf-8", "surrogateescape")
    return hmac.digest(secret, b"%d:" % len(raw) + raw + body, "sha256")

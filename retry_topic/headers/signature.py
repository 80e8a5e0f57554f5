"""Signatures: an optional HMAC-SHA256 over what limits a message: id, attempt, first failure, replays.

Without a secret, whoever can write to the topic can restart a count. With one:

- A message *with* retry headers whose signature is missing or wrong is `forged`: its counts are not believed, in the
  direction that costs the forger. Who forges wants more attempts (a lower count), more age (a later first failure)
  or more replays; so all three fall to used up: attempt and replays to `MAX_COUNT`, first failure to the epoch. The
  handler still gets the message, but its next failure makes it a dead letter, where a person sees it. Nothing is
  lost, and a wrong secret in one service shows as dead letters marked `forged`, not as an endless loop.
- A message *without* retry headers claims nothing and is fresh. A writer can also take an older signed set of the
  same message. Neither can be seen from headers alone; the record kept in the delay store until the cap by age
  (the greater of both counts holds) closes both.

Foreign headers are never signed: to adopt such a topic while a secret is set, pass `allow_unsigned=True` there, and
know that this trusts everybody who can write to it.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import replace

from retry_topic.headers.state import MAX_COUNT, RetryState
from wheel_sched.errors import Rejected

_MIN_SECRET_BYTES = 16  # 128 bits; a shorter secret can be searched for
_SCHEME = b"wheel-sched retry v1"


def sign(state: RetryState, secret: bytes) -> RetryState:
    """`state` with its signature.

    Raises:
        Rejected: the state has no id (the signature would fit any message), or the secret is under 16 bytes.
    """
    if state.id is None:
        raise Rejected("expected a state with an id to sign, got: none; set id=retry_id(...) first")
    return replace(state, signature=_signature(state, secret))


def verify(state: RetryState, secrets: bytes | Sequence[bytes], *, allow_unsigned: bool = False) -> RetryState:
    """`state` itself when its signature fits, else one with used-up counts and the oddity `forged`.

    Args:
        state: as read from headers.
        secrets: one secret, or several while a new one is being rolled out; any one may fit.
        allow_unsigned: believe a message that has no signature at all. Defaults to False.
    """
    if state.dialect == "none":
        return state
    if state.signature is None and allow_unsigned:
        return state
    candidates = [secrets] if isinstance(secrets, bytes) else list(secrets)
    given = (state.signature or "").encode()
    fits = [hmac.compare_digest(given, _signature(state, secret).encode()) for secret in candidates]
    if any(fits):
        return state
    what = "signature does not fit" if state.signature else "signature is missing"
    return replace(
        state,
        attempt=MAX_COUNT,
        replays=MAX_COUNT,
        first_failed_ms=0,
        oddities=(*state.oddities, f"forged: {what}; counts taken as used up"),
    )


def _signature(state: RetryState, secret: bytes) -> str:
    if len(secret) < _MIN_SECRET_BYTES:
        raise Rejected(f"expected a secret of at least {_MIN_SECRET_BYTES} bytes, got: {len(secret)}")
    first = "" if state.first_failed_ms is None else str(state.first_failed_ms)
    parts = (state.id or "", str(state.attempt), first, str(state.replays))
    encoded = b"".join(len(data).to_bytes(4, "big") + data for data in (part.encode() for part in parts))
    return urlsafe_b64encode(hmac.digest(secret, _SCHEME + encoded, "sha256")).decode().rstrip("=")

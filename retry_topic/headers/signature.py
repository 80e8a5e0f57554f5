"""Signatures: an optional HMAC-SHA256 over what decides about a message, so that only holders of the secret decide.

Signed are the id, the group, the topic, partition and offset where it first failed, the attempt, the first failure, the
replays, the ordering key, when it was published, and the payload and key. So a signature fits one attempt of one
message in one group, and nothing else: not another payload, not another topic, whose policy may allow more.

Without a secret, whoever can write to the topic can restart a count. With one, a record whose signature is missing or
wrong is `unsigned`. Nothing it says of itself counts: its id is made of what it carries (`content_id`), and the store
counts its attempts, one for each record that comes. It ends at the cap that is the least of any policy. Two unsigned
records with one payload and key cannot be told apart, so they share a count. A record without any headers is unsigned
too, where only holders of the secret write: in the group's retry and redelivery topic.

A message that tells of no failure needs none: whoever may write to its topic may give it an id, which is a name and no
count. The consumer signs it at its first failure.

Foreign headers (Spring's, SmallRye's, Pulsar's) are never signed.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import replace

from retry_topic.headers.identity import content_id
from retry_topic.headers.names import FIELDS
from retry_topic.headers.state import RetryState
from retry_topic.headers.values import encode
from retry_topic.message import Message, digest_of
from wheel_sched.errors import Rejected

_MIN_SECRET_BYTES = 16  # 128 bits; a shorter secret can be searched for
_SCHEME = b"wheel-sched run-now v2"
_SIGNED = tuple(
    (name, FIELDS[name])
    for name in (
        "id",
        "consumer_group",
        "original_topic",
        "original_partition",
        "original_offset",
        "attempt",
        "first_failed_ms",
        "replays",
        "ordering",
        "published_ms",
    )
)


def sign(state: RetryState, message: Message, secret: bytes) -> RetryState:
    """`state` with the signature that fits it on `message` alone.

    Args:
        state: as it is going to be written.
        message: whose payload and key it is about; one by reference counts as the payload it stands for.
        secret: of 16 bytes at least.

    Raises:
        Rejected: the state has no id (the signature would fit any message), or the secret is under 16 bytes.
    """
    if state.id is None:
        raise Rejected("expected a state with an id to sign, got: none; set id=retry_id(...) first")
    return replace(state, signature=_signature(state, _digest(message), secret))


def verify(state: RetryState, message: Message, secrets: bytes | Sequence[bytes], group: str) -> RetryState:
    """`state` itself when its signature fits, else what is left of it: see `unsigned`.

    Args:
        state: as read from the headers of `message`.
        message: as delivered.
        secrets: one secret, or several while a new one is being rolled out; any one may fit.
        group: whose record it is, when it has to be known by its payload.
    """
    if state.signature is None:
        return unsigned(state, message, group, "is missing")
    candidates = [secrets] if isinstance(secrets, bytes) else list(secrets)
    given, digest = state.signature.encode(), _digest(message)
    fits = [hmac.compare_digest(given, _signature(state, digest, secret).encode()) for secret in candidates]
    return state if any(fits) else unsigned(state, message, group, "does not fit")


def unsigned(state: RetryState, message: Message, group: str, why: str) -> RetryState:
    """What is believed of a record that nobody has signed: no id, no count, and no first failure later than now."""
    claims = state.dialect != "none"
    return replace(
        state,
        id=content_id(group, message.value, message.key),
        attempt=0,
        replays=0,
        published_ms=None,
        signature=None,
        unsigned=True,
        oddities=(*state.oddities, f"unsigned: the signature {why}; the store counts") if claims else state.oddities,
    )


def _digest(message: Message) -> bytes:
    """Of payload and key. What is stored by reference is signed as what it refers to."""
    by_reference = message.reference is not None and not message.value
    payload = message.reference.digest if message.reference and by_reference else digest_of(message.value)
    return f"{payload} {'' if message.key is None else digest_of(message.key)}".encode("utf-8", "replace")


def _signature(state: RetryState, digest: bytes, secret: bytes) -> str:
    if len(secret) < _MIN_SECRET_BYTES:
        raise Rejected(f"expected a secret of at least {_MIN_SECRET_BYTES} bytes, got: {len(secret)}")
    parts = [digest]
    for name, field in _SIGNED:
        value = getattr(state, name)
        written = None if value is None else encode(field, value)  # what cannot be written is not read back
        parts.append(b"-" if written is None else b"+" + written)
    encoded = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return urlsafe_b64encode(hmac.digest(secret, _SCHEME + encoded, "sha256")).decode().rstrip("=")

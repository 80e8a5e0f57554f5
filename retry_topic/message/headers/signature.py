"""Signatures: an optional HMAC-SHA256 over the headers that identify a message and count its attempts, so that only
holders of the secret can write them.

A signature covers the id, the group, the topic, partition and offset of the first failure, the attempt, the time of the
first failure, the replays, the item of a replay, the ordering key, the publishing time, and payload and key. So a
signature fits one attempt of one message in one group, and nothing else: not another payload, not another topic whose
policy may allow more. It does not cover the failure: verdict, requested delay, error and HTTP status.

Without a secret, every client that can write to the topic can restart a count. With a secret, a record whose signature
is absent or wrong is `unsigned`, and its id and counts are ignored. Its id is made of payload and key (`content_id`).
The store counts its attempts, one for each record, up to the lowest `max_attempts` of all policies and rules. Two
unsigned records with equal payload and key look the same, so they share a count. The group's consumers and services
write retry headers on each record that they send to the group's retry and redelivery topics. So a record without retry
headers in these topics comes from another client, and is unsigned too.

A message that has never failed needs no signature. Every client that may write to its topic may give it an id, because
an id is a name and not a count. The consumer signs the message at its first failure.

Headers of Spring, SmallRye and Pulsar are never signed.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import replace

from retry_topic.message import Message, digest_of
from retry_topic.message.headers.state import FIELDS, RetryState, content_id, encode
from wheel_sched.errors import Rejected

_MIN_SECRET_BYTES = 16  # 128 bits; an attacker can guess a shorter secret
_SCHEME = b"wheel-sched retry v2"
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
        "key_lock",
        "published_ms",
    )
)


def sign(state: RetryState, message: Message, secret: bytes) -> RetryState:
    """`state` with a signature that fits only this state on this message.

    Args:
        state: the state that is going to be written.
        message: the message it belongs to. A message by reference counts as the payload that it refers to.
        secret: at least 16 bytes.

    Raises:
        Rejected: the state has no id (the signature would fit any message), or the secret is shorter than 16 bytes.
    """
    if state.id is None:
        raise Rejected("expected a state with an id to sign, got: none; set id=retry_id(...) first")
    return replace(state, signature=_signature(state, _digest(message), secret))


def verify(state: RetryState, message: Message, secrets: bytes | Sequence[bytes], group: str) -> RetryState:
    """`state` itself when its signature fits the message, else the part of `state` that `unsigned` keeps.

    Args:
        state: as read from the headers of `message`.
        message: as delivered.
        secrets: one secret, or several during the rollout of a new one; the signature may fit any of them.
        group: the consumer group, for the id that is made of the payload.
    """
    if state.signature is None:
        return unsigned(state, message, group, "is missing")
    candidates = [secrets] if isinstance(secrets, bytes) else list(secrets)
    given, digest = state.signature.encode(), _digest(message)
    fits = [hmac.compare_digest(given, _signature(state, digest, secret).encode()) for secret in candidates]
    return state if any(fits) else unsigned(state, message, group, "does not fit")


def unsigned(state: RetryState, message: Message, group: str, why: str) -> RetryState:
    """`state` with counts of 0 and the id made of payload and key, because no signature proves the given ones.

    `why`: the fault of the signature, for `oddities`.
    """
    claims = state.dialect != "none"
    return replace(
        state,
        id=content_id(group, message.value, message.key),
        attempt=0,
        replays=0,
        item_id=None,
        published_ms=None,
        signature=None,
        unsigned=True,
        oddities=(*state.oddities, f"unsigned: the signature {why}; the store counts") if claims else state.oddities,
    )


def _digest(message: Message) -> bytes:
    """The hash of payload and key. A message by reference has the hash of the payload that it refers to."""
    by_reference = message.reference is not None and not message.value
    payload = message.reference.digest if message.reference and by_reference else digest_of(message.value)
    return f"{payload} {'' if message.key is None else digest_of(message.key)}".encode("utf-8", "replace")


def _signature(state: RetryState, digest: bytes, secret: bytes) -> str:
    if len(secret) < _MIN_SECRET_BYTES:
        raise Rejected(f"expected a secret of at least {_MIN_SECRET_BYTES} bytes, got: {len(secret)}")
    parts = [digest]
    for name, field in _SIGNED:
        value = getattr(state, name)
        written = None if value is None else encode(field, value)  # a value that cannot be written is not read back
        parts.append(b"-" if written is None else b"+" + written)
    if state.item_id is not None:  # few messages have it; without it a signature is as it was before this field
        parts.append(b"item " + (encode(FIELDS["item_id"], state.item_id) or b""))
    encoded = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return urlsafe_b64encode(hmac.digest(secret, _SCHEME + encoded, "sha256")).decode().rstrip("=")

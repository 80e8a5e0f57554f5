"""The retry state of a message (the typed form of its retry headers), and the ids of messages.

The same message of the same group always gets the same id, so a second copy of a retry is recognised. An id has 95
bits: among a thousand million messages, two share an id with a probability of about 10**-11.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Literal
from zlib import crc32

MAX_COUNT = 1_000_000
"""The greatest count of attempts or replays, above every sensible cap. A larger count is lowered to this one."""

_GATE = re.compile(r"[A-Za-z0-9_-]{12}\.[A-Za-z0-9_-]{16}")

Dialect = Literal["none", "own", "spring", "smallrye", "pulsar"]


def retry_id(group: str, topic: str, partition: int, offset: str) -> str:
    """The id of a message: 16 url-safe characters made of the consumer group and the place of the original record.

    The first character is a letter, so that a command line never takes an id for an option. `topic` may be the broker's
    topic *id*: then a topic that was recreated does not repeat old ids.
    """
    digest = blake2b(digest_size=12)
    for part in (group, topic, str(partition), offset):
        data = part.encode(errors="surrogatepass")
        digest.update(len(data).to_bytes(4, "big") + data)  # with lengths, so that ("ab", "c") differs from ("a", "bc")
    first, *rest = digest.digest()
    return urlsafe_b64encode(bytes([first & 0x7F, *rest])).decode()  # the dash is in the upper half of the alphabet


def member_id(retry_id: str, attempt: int) -> str:
    """The id of one attempt in the delay store."""
    return f"{retry_id}.{attempt}"


def content_id(group: str, value: bytes, key: bytes | None) -> str:
    """An id made of payload and key, for a record whose place and headers prove nothing. Equal records share it."""
    digest = blake2b(value, digest_size=16).hexdigest()
    return retry_id(group, "", 0, digest if key is None else digest + blake2b(key, digest_size=16).hexdigest())


def content_print(value: bytes, key: bytes | None) -> str:
    """A short checksum of payload and key. It distinguishes two messages that got the same id by accident.

    It does not protect against an attacker, who can make two messages with one checksum. A signature covers the whole
    payload.
    """
    return f"{crc32(value, 0 if key is None else crc32(key, len(key) + 1)):x}"


@dataclass(slots=True, unsafe_hash=True)
class RetryState:
    """What the retry headers of a message say. Each field has its own header, see `FIELDS`.

    Nobody changes a state; `dataclasses.replace` makes another one. It is not frozen, because one is made for each
    message and a frozen dataclass takes three times as long to make.

    `attempt` counts the deliveries that have *failed*: 0 on a new message, 1 in the retry topic after the first
    failure. The delivery that is running is number `attempt + 1`.

    Args:
        id: the `retry_id` of the message; all its attempts have the same. Defaults to None.
        attempt: failed deliveries so far. Defaults to 0.
        max_attempts: the cap by count at the last failure; for consumers to read, never used to decide.
        first_failed_ms: epoch ms of the first failure.
        last_failed_ms: epoch ms of the last failure.
        due_ms: epoch ms of the next attempt. On a delivered message: of this attempt. In the retry topic: of the
            attempt that failed.
        started_ms: epoch ms at which the failed attempt was started, for reports.
        policy: `name@version` of the policy that decided.
        delay_ms: the delay before this delivery.
        verdict: the verdict that the handler returned.
        retry_after_ms: the delay that the handler or the remote side requested.
        original_topic: the topic on which the message first failed.
        original_partition: its partition there.
        original_offset: its offset there, as text because brokers differ.
        original_timestamp_ms: its timestamp there.
        consumer_group: the group whose handler failed.
        error_class: fully qualified class of the last error.
        error_mro: its parent classes, nearest first.
        error_message: its text.
        error_fingerprint: the fingerprint of the error, see `fingerprint`.
        error_status: its HTTP status.
        replays: how often the message was replayed from the dead letters. Defaults to 0.
        ordering: the lock of its ordering key in the delay store; None: the message is not ordered.
        published_ms: epoch ms at which it was published for later with a given id; None: the id was made of its place.
        signature: HMAC over all fields that decide and over the payload, see `signature`.
        oddities: what was wrong with the headers; not compared and not written. Defaults to none.
        dialect: whose headers were read, "none" when there were none; not compared and not written.
        unsigned: none of our secrets has signed the headers. Then the id is made of payload and key, and the store
            counts the attempts. Not compared and not written.
    """

    id: str | None = None
    attempt: int = 0
    max_attempts: int | None = None
    first_failed_ms: int | None = None
    last_failed_ms: int | None = None
    due_ms: int | None = None
    started_ms: int | None = None
    policy: str | None = None
    delay_ms: int | None = None
    verdict: Literal["retry", "dead"] | None = None
    retry_after_ms: int | None = None
    original_topic: str | None = None
    original_partition: int | None = None
    original_offset: str | None = None
    original_timestamp_ms: int | None = None
    consumer_group: str | None = None
    error_class: str | None = None
    error_mro: tuple[str, ...] = ()
    error_message: str | None = None
    error_fingerprint: str | None = None
    error_status: int | None = None
    replays: int = 0
    ordering: str | None = None
    published_ms: int | None = None
    signature: str | None = None
    oddities: tuple[str, ...] = field(default=(), compare=False)
    dialect: Dialect = field(default="none", compare=False)
    unsigned: bool = field(default=False, compare=False)

    @property
    def known_as(self) -> str:
        """The name under which the store counts the message's attempts.

        An id that was made of the message's place already names group and message. An id from a publisher does not:
        every group of the topic sees it, and the publisher may use it again later. So the name of such a message is its
        id and a hash of group and publishing time.
        """
        if self.published_ms is None:
            return f"{self.id}"
        return f"{f'{self.id}'[:64]}~{retry_id(self.consumer_group or '', f'{self.id}', 0, f'{self.published_ms}')[:8]}"

    @property
    def stem(self) -> str:
        """The message id base: the ids of all its attempts in the delay store begin with it. A replay has a new one."""
        return f"{self.known_as}r{self.replays}" if self.replays else self.known_as

    @property
    def passed_the_store(self) -> bool:
        """Whether a dispatcher has released the message. Then a second copy of it may exist."""
        return self.id is not None and bool(self.attempt or self.replays or self.published_ms is not None)

    @property
    def gate(self) -> str | None:
        """`ordering` if it has the form of a key lock, else None: headers are not trusted."""
        return self.ordering if self.ordering is not None and _GATE.fullmatch(self.ordering) else None

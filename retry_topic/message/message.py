"""The message: what a broker delivers, what a handler sees, and what the dispatcher publishes again.

Nobody changes a message after it was made. Brokers translate it to and from their own records, byte for byte. A message
that was read has a `source`; a message that is going to be published has none. `Message` and `Source` are not frozen:
several are made for each record, and a frozen dataclass takes three times as long to make.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

Headers = tuple[tuple[str, bytes], ...]


@dataclass(slots=True, unsafe_hash=True)
class Source:
    """Where a message was read. `offset` is text, because brokers differ: Kafka has a number, Streams have `ms-seq`."""

    topic: str
    partition: int
    offset: str
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Reference:
    """Names the record of a log that holds a payload. Used for payloads that are too large to be stored twice.

    Args:
        topic: the log's topic.
        partition: the partition of the record.
        offset: the offset of the record.
        length: the size of the payload in bytes.
        digest: the hash of the payload, see `digest_of`.
    """

    topic: str
    partition: int
    offset: int
    length: int
    digest: str

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"

    def fits(self, value: bytes) -> bool:
        """Whether `value` is the payload that this reference names."""
        return len(value) == self.length and digest_of(value) == self.digest


def digest_of(value: bytes) -> str:
    """The hash of a payload: 128 bits of BLAKE2b, in hex."""
    return blake2b(value, digest_size=16).hexdigest()


@dataclass(slots=True, unsafe_hash=True)
class Message:
    """One record of a topic.

    Args:
        topic: the topic it was read from, or the topic it goes to.
        value: the payload, unchanged bytes.
        key: the partitioning key, unchanged bytes. Defaults to None.
        headers: pairs of name and bytes, in order. A name may occur twice; the last one counts. Defaults to none.
        source: where it was read. Defaults to None: it is going to be published.
        reference: the record that holds the payload, when `value` is empty because the payload is too large. Only
            messages in the delay store have one. Defaults to None.
        partition: the partition it goes to. Defaults to None: the key decides. The key also decides when the topic
            has no such partition, or the broker has no partitions.
        timestamp_ms: the time of the record in epoch ms. Defaults to None: the time of publishing. If the topic refuses
            the time as too old, or the broker sets the times itself, the record also gets the time of publishing.
    """

    topic: str
    value: bytes
    key: bytes | None = None
    headers: Headers = ()
    source: Source | None = None
    reference: Reference | None = None
    partition: int | None = None
    timestamp_ms: int | None = None

    def header(self, name: str) -> bytes | None:
        """The last value of the header `name`, or None."""
        for key, value in reversed(self.headers):
            if key == name:
                return value
        return None

    def to(self, topic: str, headers: Headers | None = None) -> Message:
        """The same message, addressed to `topic`. If `headers` are given, they replace the message's headers."""
        headers = self.headers if headers is None else headers
        return Message(topic, self.value, self.key, headers, None, self.reference, self.partition, self.timestamp_ms)

    def by_reference(self, source: Source) -> Message:
        """The same message with a reference to the record `source` in place of its payload."""
        place = source.topic, source.partition, int(source.offset)
        reference = Reference(*place, len(self.value), digest_of(self.value))
        return Message(self.topic, b"", self.key, self.headers, None, reference)

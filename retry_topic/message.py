"""The message: what a broker delivers, a handler sees and the dispatcher republishes.

A message is a value that nobody changes; brokers translate it to and from their own records, byte for byte. `source`
says where a delivered message was read; a message that is to be published has none. Neither is frozen, which would make
them three times as dear, and several are made on each message's way.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

Headers = tuple[tuple[str, bytes], ...]


@dataclass(slots=True, unsafe_hash=True)
class Source:
    """Where a message was read: `offset` is text because brokers disagree (Kafka: a number, Streams: `ms-seq`)."""

    topic: str
    partition: int
    offset: str
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Reference:
    """Where a payload lies that is too large to be carried along: a record of a log, and how to know it again.

    Args:
        topic: the log.
        partition: of it.
        offset: of the record.
        length: of the payload, in bytes.
        digest: of the payload, see `digest_of`.
    """

    topic: str
    partition: int
    offset: int
    length: int
    digest: str

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"

    def fits(self, value: bytes) -> bool:
        """Whether this is the payload it stands for."""
        return len(value) == self.length and digest_of(value) == self.digest


def digest_of(value: bytes) -> str:
    """128 bits of BLAKE2b, in hex."""
    return blake2b(value, digest_size=16).hexdigest()


@dataclass(slots=True, unsafe_hash=True)
class Message:
    """One record of a topic.

    Args:
        topic: where it was read, or where it is to go.
        value: payload, untouched bytes.
        key: partitioning key, untouched bytes. Defaults to None.
        headers: ordered pairs of name and bytes; names may repeat, the last one wins. Defaults to none.
        source: where it was read. Defaults to None (a message to be published).
        reference: where the payload lies, when `value` is empty for its size; in the delay store alone. Defaults to
            None.
        partition: where on its topic it is to go, if the topic has that partition. Defaults to None: its key decides,
            as where there is no such partition, or the broker knows of none.
        timestamp_ms: the time it is to carry, epoch ms, if its topic keeps times so old. Defaults to None: when it is
            published, as where the broker has a time of its own.
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
        """The last value of header `name`, or None."""
        for key, value in reversed(self.headers):
            if key == name:
                return value
        return None

    def to(self, topic: str, headers: Headers | None = None) -> Message:
        """The same payload and key addressed to `topic`, with `headers` instead of its own when given."""
        headers = self.headers if headers is None else headers
        return Message(topic, self.value, self.key, headers, None, self.reference, self.partition, self.timestamp_ms)

    def by_reference(self, source: Source) -> Message:
        """The same without its payload, which is that of the record `source`."""
        place = source.topic, source.partition, int(source.offset)
        reference = Reference(*place, len(self.value), digest_of(self.value))
        return Message(self.topic, b"", self.key, self.headers, None, reference)

"""The message: what a broker delivers, a handler sees and the dispatcher republishes.

A message is a value that nobody changes; brokers translate it to and from their own records, byte for byte. `source`
says where a delivered message was read; a message that is to be published has none. Neither is frozen, which would make
them three times as dear, and several are made on each message's way.
"""

from __future__ import annotations

from dataclasses import dataclass

Headers = tuple[tuple[str, bytes], ...]


@dataclass(slots=True, unsafe_hash=True)
class Source:
    """Where a message was read: `offset` is text because brokers disagree (Kafka: a number, Streams: `ms-seq`)."""

    topic: str
    partition: int
    offset: str
    timestamp_ms: int | None = None


@dataclass(slots=True, unsafe_hash=True)
class Message:
    """One record of a topic.

    Args:
        topic: where it was read, or where it is to go.
        value: payload, untouched bytes.
        key: partitioning key, untouched bytes. Defaults to None.
        headers: ordered pairs of name and bytes; names may repeat, the last one wins. Defaults to none.
        source: where it was read. Defaults to None (a message to be published).
    """

    topic: str
    value: bytes
    key: bytes | None = None
    headers: Headers = ()
    source: Source | None = None

    def header(self, name: str) -> bytes | None:
        """The last value of header `name`, or None."""
        for key, value in reversed(self.headers):
            if key == name:
                return value
        return None

    def to(self, topic: str, headers: Headers | None = None) -> Message:
        """The same payload and key addressed to `topic`, with `headers` instead of its own when given."""
        return Message(topic, self.value, self.key, self.headers if headers is None else headers)

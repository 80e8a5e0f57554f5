"""What can be published at all: names of topics, limits of an entry, and batches cut to size. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retry_topic.brokers.protocol import PublishFailure
from retry_topic.brokers.redis_streams.faults import REASON_CHARACTERS
from retry_topic.message.stream_encoding import to_fields
from wheel_sched.store.redis.durability import OURS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from retry_topic.message import Message

STORE_KEY = re.compile(r"\{[^{}]*:[0-9]+\}:")  # how every key of a delay store begins
REGISTRY = "topics"  # the key of the set of known topics, which therefore is no name for one
MAX_FIELDS = 3_500  # fields and values of one entry: a script unpacks at most about 8,000 arguments
MAX_BYTES = 512 * 1024 * 1024  # proto-max-bulk-len: the server hangs up on more, and would on every repetition
PIPELINE_MESSAGES = 500
PIPELINE_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Parcel:
    """A message ready to be sent: its place in the batch, its topic, the fields of its entry and their size."""

    index: int
    topic: str
    fields: list[bytes]
    size_bytes: int


def topic_problem(topic: str) -> str | None:
    """Why `topic` cannot be the name of a topic, if so."""
    if not isinstance(topic, str) or not topic or topic == REGISTRY:
        return f"expected topic to be a non-empty name other than {REGISTRY!r} (the registry of topics), got: {topic!r}"
    if STORE_KEY.match(topic):
        return f"expected topic to be no name of a delay store's keys ({{namespace:shard}}:...), got: {topic!r}"
    if OURS in topic:
        return f"expected topic to be a name without {OURS!r} (keys of ours beside topics have it), got: {topic!r}"
    try:
        topic.encode()
    except UnicodeEncodeError:
        return f"expected topic to be text, got one with an unpaired surrogate: {topic!r}"
    return None


def unknown_topic(topic: str) -> PublishFailure:
    """The failure of a message whose stream does not exist."""
    return _never(f"unknown topic {topic!r}: nothing was sent; create it, or allow create_topics")


def pack(index: int, message: Message) -> Parcel | PublishFailure:
    """The message as a parcel, or why it can never be published."""
    try:
        fields = to_fields(message)
    except UnicodeEncodeError as error:
        return _never(f"the name of a header is no text ({error}): nothing was sent")
    return pack_fields(index, message.topic, fields)


def pack_fields(index: int, topic: str, fields: list[bytes]) -> Parcel | PublishFailure:
    """A flat list of fields and values as a parcel, or why it can never be published."""
    problem = topic_problem(topic)
    if problem:
        return _never(problem)
    if len(fields) > MAX_FIELDS:
        return _never(f"too many headers ({len(fields) // 2}, at most {MAX_FIELDS // 2 - 2}): nothing was sent")
    size_bytes = sum(map(len, fields))
    if size_bytes > MAX_BYTES:
        return _never(f"too large ({size_bytes} bytes, at most {MAX_BYTES}): nothing was sent")
    return Parcel(index, topic, fields, size_bytes)


def in_parts(parcels: Iterable[Parcel], at_most: int = PIPELINE_MESSAGES) -> Iterator[list[Parcel]]:
    """Runs of bounded count and size, so that neither side has to hold a whole batch of large messages."""
    part: list[Parcel] = []
    size_bytes = 0
    for parcel in parcels:
        if part and (len(part) == at_most or size_bytes + parcel.size_bytes > PIPELINE_BYTES):
            yield part
            part, size_bytes = [], 0
        part.append(parcel)
        size_bytes += parcel.size_bytes
    if part:
        yield part


def _never(reason: str) -> PublishFailure:
    return PublishFailure(reason[:REASON_CHARACTERS], transient=False)

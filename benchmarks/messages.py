"""Items and messages for the benchmarks. Their ids look like those of the retry service.

For figures of the store a body has 100 bytes. For figures of the dispatcher a body holds a whole message: a value of
100 bytes, and its due time and number as headers. So a receiver knows how late each message is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from retry_topic.message import Message
from retry_topic.message.encoding import encode_body
from retry_topic.message.headers.state import retry_id
from wheel_sched.dispatcher import Batch, PublisherTraits
from wheel_sched.store import Claimed, Dead, Done, Item

TOPIC = "orders-retry"
VALUE = bytes(range(32, 132))  # 100 bytes
BATCH = 500  # items a call, the limit of the store


def ids(count: int, series: str = "") -> list[str]:
    """Ids like those of the retry service: 16 url-safe characters, a dot and the attempt."""
    return [retry_id("billing", f"orders{series}", 0, str(offset)) + ".1" for offset in range(count)]


def plain_items(names: Sequence[str], due_ms: int) -> list[Item]:
    """Items of 100 bytes, all due at once."""
    return [Item(name, due_ms, VALUE, TOPIC) for name in names]


def push_items(names: Sequence[str], dues_ms: Sequence[int], stream: str = TOPIC, first: int = 0) -> list[Item]:
    """Items with messages for `stream`, numbered from `first` up. Their bodies have the push form."""
    return [
        Item(name, due, encode_body(message(due, number, stream)), TOPIC)
        for number, (name, due) in enumerate(zip(names, dues_ms, strict=True), first)
    ]


def message(due_ms: int, number: int, topic: str = TOPIC) -> Message:
    """A message with its due time and its number as headers."""
    return Message(topic, VALUE, headers=(("due", b"%d" % due_ms), ("n", b"%d" % number)))


def in_batches(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """Yield the items in batches, each with as many items as one call on the store may have."""
    for at in range(0, len(items), BATCH):
        yield items[at : at + BATCH]


class NullPublisher:
    """Answers "published" for every item, so that only store and dispatcher are measured."""

    traits = PublisherTraits()

    def publish(self, batch: Batch) -> None:
        batch.answers[:] = [Done(item.id) for item in batch.items]

    def refuse(self, item: Claimed, reason: str) -> Dead:
        return Dead(item.id, reason)

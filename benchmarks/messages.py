"""What is scheduled: messages as the retry service makes them, ids of its own kind and bodies of 100 bytes.

Bodies are plain for the store's figures and in push form for the dispatcher's, with the due and a number beside the
100 bytes, so that a receiver can judge each message by what it carries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from retry_topic.brokers.protocol import Broker
from retry_topic.headers.identity import member_id, retry_id
from retry_topic.message import Message
from wheel_sched.dispatcher import Batch, Failed
from wheel_sched.store import Claimed, Dead, Done, Item, decode_push, encode_push

TOPIC = "orders-retry"
VALUE = bytes(range(32, 132))  # 100 bytes
BATCH = 500  # items a call: the most a store takes


def ids(count: int, series: str = "") -> list[str]:
    """Ids of the retry service: 16 url-safe characters, a dot and the attempt."""
    return [member_id(retry_id("billing", f"orders{series}", 0, str(offset)), 1) for offset in range(count)]


def plain_items(names: Sequence[str], due_ms: int) -> list[Item]:
    """Items of 100 bytes, all due at once."""
    return [Item(name, due_ms, VALUE, TOPIC) for name in names]


def push_items(names: Sequence[str], dues_ms: Sequence[int], stream: str = TOPIC, first: int = 0) -> list[Item]:
    """Items that the server itself, or `BrokerPublisher`, can put into `stream`, numbered from `first` up."""
    return [
        Item(name, due, encode_push("S", stream, entry(due, number)), TOPIC)
        for number, (name, due) in enumerate(zip(names, dues_ms, strict=True), first)
    ]


def entry(due_ms: int, number: int) -> list[bytes]:
    """Fields and values of a message."""
    return [b"value", VALUE, b"due", b"%d" % due_ms, b"n", b"%d" % number]


def in_batches(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """What one call takes at a time."""
    for at in range(0, len(items), BATCH):
        yield items[at : at + BATCH]


class BrokerPublisher:
    """Publishes claimed items to a broker, one `publish` a batch: the claim, publish, settle way."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def publish(self, batch: Batch) -> None:
        messages = []
        for item in batch.items:
            form = decode_push(item.body)
            names = (piece.decode() for piece in form.pieces[2::2])
            messages.append(Message(form.target, form.pieces[1], headers=tuple(zip(names, form.pieces[3::2]))))  # noqa: B905 - push form holds pairs
        for place, (item, failure) in enumerate(zip(batch.items, self._broker.publish(messages), strict=True)):
            batch.answers[place] = Done(item.id) if failure is None else Failed(failure.reason, failure.transient)

    def refuse(self, item: Claimed, reason: str) -> Dead:
        return Dead(item.id, reason)


class NullPublisher:
    """Says "published" to everything, so that store and dispatcher alone are measured."""

    def publish(self, batch: Batch) -> None:
        batch.answers[:] = [Done(item.id) for item in batch.items]

    def refuse(self, item: Claimed, reason: str) -> Dead:
        return Dead(item.id, reason)

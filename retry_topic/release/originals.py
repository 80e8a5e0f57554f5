"""Messages by reference: reads their payloads again from the retry topic, just before the messages are sent.

If the record of a payload is gone (retention, compaction, a deleted topic) or holds another payload now, the message
becomes a dead letter with that reason. If the broker does not answer, the message waits. One claim fetches at most
`MOST_BYTES`, or one larger payload; its other messages return to the store and are due again immediately.
"""

from __future__ import annotations

from dataclasses import replace

from retry_topic.brokers.protocol import OriginalsBroker, PublishFailure
from retry_topic.message import Reference
from retry_topic.message.encoding import decode_body, encode_body, split_reference
from wheel_sched.dispatcher import Answer, Batch, Failed, Publisher
from wheel_sched.errors import BrokerError, Rejected
from wheel_sched.escaping import logger_of
from wheel_sched.store import Claim, Claimed, Dead, Held, Next

logger = logger_of("retry_topic.originals")

MOST_BYTES = 32 * 1024 * 1024


class OriginalsPublisher:
    """A dispatcher's publisher that adds payloads from the retry topic, and passes the messages to another publisher.

    Args:
        publisher: sends the messages.
        broker: holds the payloads.
    """

    def __init__(self, publisher: Publisher, broker: OriginalsBroker) -> None:
        self.traits = replace(publisher.traits, never_waits=False)  # payloads are read from the broker
        self._publisher = publisher
        self._broker = broker

    def publish(self, batch: Batch) -> None:
        """Add the payloads to the messages of a batch, and pass the batch on. Implements `Publisher.publish`."""
        wanted: dict[int, Reference] = {}
        room = MOST_BYTES
        for place, item in enumerate(batch.items):
            if batch.answers[place] is not None:
                continue
            try:
                reference, _ = split_reference(item.body)
            except Rejected as error:
                batch.answers[place] = Held(item.id, f"quarantine: {error}")
                continue
            if reference is None:
                continue
            if wanted and reference.length > room:
                batch.answers[place] = _later(batch, item)
                continue
            wanted[place] = reference
            room -= reference.length
        if wanted:
            self._put_in(batch, wanted)
        self._publisher.publish(batch)

    def refuse(self, item: Claimed, reason: str) -> Answer | None:
        """The answer for an item that the server could not push. Implements `Publisher.refuse`."""
        return self._publisher.refuse(item, reason)

    def _put_in(self, batch: Batch, wanted: dict[int, Reference]) -> None:
        try:
            found = self._broker.originals(list(wanted.values()))
        except BrokerError as error:
            found = [PublishFailure(str(error))] * len(wanted)
        for (place, reference), value in zip(wanted.items(), found, strict=True):
            if isinstance(value, PublishFailure):
                self._without(batch, place, value)
            elif reference.fits(value):
                self._fill(batch, place, value)
            else:
                why = f"original: {reference} holds another payload now"
                self._without(batch, place, PublishFailure(why, transient=False))

    def _without(self, batch: Batch, place: int, failure: PublishFailure) -> None:
        item = batch.items[place]
        if failure.transient:
            batch.answers[place] = Failed(failure.reason)
        else:
            logger.warning("originals.gone: %s: %s", item.id, failure.reason)
            batch.answers[place] = Dead(item.id, failure.reason)

    def _fill(self, batch: Batch, place: int, value: bytes) -> None:
        item = batch.items[place]
        try:
            message = replace(decode_body(item.body), value=value, reference=None)
            batch.items[place] = replace(item, body=encode_body(message))
        except Rejected as error:
            batch.answers[place] = Held(item.id, f"quarantine: {error}")


def _later(batch: Batch, item: Claimed) -> Next:
    claim = batch.claim
    now_ms = claim.now_us // 1000 if isinstance(claim, Claim) else 0
    return Next(item.id, now_ms)

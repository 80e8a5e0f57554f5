"""Broker publisher: sends due items of the store as messages to a broker, and reports the result for each item."""

from __future__ import annotations

from retry_topic.brokers.protocol import Broker, FieldsBroker, InstantBroker, PublishFailure
from retry_topic.message.encoding import from_fields
from retry_topic.message.headers import return_to_origin
from retry_topic.message.headers.state import FAILED_ATTEMPTS
from wheel_sched.dispatcher import Answer, Batch, Failed, PublisherTraits
from wheel_sched.errors import BrokerError, Rejected
from wheel_sched.store import Claimed, Dead, Done, Held, decode_push
from wheel_sched.store.push.push_form import split_note

_ATTEMPTS = FAILED_ATTEMPTS.encode()

Entry = tuple[str, list[bytes]]  # a topic and the message's fields


class BrokerPublisher:
    """A dispatcher's publisher for any broker. The failure of one message never delays another message."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._fields = broker if isinstance(broker, FieldsBroker) else None
        self.traits = PublisherTraits(never_waits=isinstance(broker, InstantBroker) and broker.instant)

    def publish(self, batch: Batch) -> None:
        """Send the messages of a batch to the broker, and give each item its answer. Implements `Publisher.publish`."""
        found = entries_of(batch)
        if not found:
            return
        failures = self._send([entry for _, entry in found])
        self._send_lighter([entry for _, entry in found], failures)
        for (place, _), failure in zip(found, failures, strict=True):
            batch.answers[place] = (
                Done(batch.items[place].id)
                if failure is None
                else Failed(failure.reason, failure.transient, failure.in_doubt)
            )

    def _send(self, entries: list[Entry]) -> list[PublishFailure | None]:
        if self._fields is not None:
            return self._fields.publish_fields(entries)
        return self._broker.publish([return_to_origin(from_fields(topic, fields)) for topic, fields in entries])

    def _send_lighter(self, entries: list[Entry], failures: list[PublishFailure | None]) -> None:
        """Repeat the messages that the broker has refused for good, without the header about their failed attempts.

        A message must not die because this header makes it too large. The results replace those in `failures`.
        """
        places = [
            place
            for place, failure in enumerate(failures)
            if failure is not None
            and not (failure.transient or failure.in_doubt)
            and _ATTEMPTS in entries[place][1][::2]
        ]
        if not places:
            return
        lighter = [(topic, _without_attempts(fields)) for topic, fields in (entries[place] for place in places)]
        try:
            answers = self._send(lighter)
        except BrokerError as error:  # the other messages were sent: an exception would repeat them
            answers = [PublishFailure(f"{error}"[:500], in_doubt=error.in_doubt)] * len(lighter)
        for place, failure in zip(places, answers, strict=True):
            failures[place] = failure

    def refuse(self, item: Claimed, reason: str) -> Answer:
        """The answer for an item that the server could not push.

        An item with an unreadable body is held for an operator. An item for an unknown topic becomes dead. When the
        target's server refuses (out of memory, a missing permission), the message is not the cause, so it is tried
        again.
        """
        if reason.startswith("quarantine"):
            return Held(item.id, reason)
        if " refused: " in reason or "NOPERM" in reason:  # publish.lua writes these words
            return Failed(reason)
        return Dead(item.id, reason)


def entries_of(batch: Batch) -> list[tuple[int, Entry]]:
    """For each item without an answer: its place in the batch, and its stream entry. Unreadable items are held."""
    found: list[tuple[int, Entry]] = []
    for place, item in enumerate(batch.items):
        if batch.answers[place] is not None:  # a limit holds it back, see `flow`
            continue
        try:
            form = decode_push(item.body)
            if form.kind != "S":
                raise Rejected("the body is for a list and holds no message")
            found.append((place, (form.target, split_note(form)[0])))
        except Rejected as error:
            batch.answers[place] = Held(item.id, f"quarantine: {error}")
    return found


def _without_attempts(fields: list[bytes]) -> list[bytes]:
    pairs = zip(fields[::2], fields[1::2], strict=True)
    return [piece for field, content in pairs if field != _ATTEMPTS for piece in (field, content)]

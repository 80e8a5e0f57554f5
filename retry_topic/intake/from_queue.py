"""The intake from a queue (Redis Streams, memory): ask the store, plan, store, acknowledge.

A record is acknowledged only after it is stored. After a crash in between, the broker hands the record out again, and
the intake finds its id in the store.

The store keeps two *notes* about a record: the attempt count of its message, until the policy's cap by age, and for an
hour the fact that the record was taken in. So a record that is handed out again after a crash is taken in exactly once,
even if its message was sent long ago. With one shard, the call that stores waiting messages also writes their notes.
With several shards, and for dead letters, a second call writes the notes. A crash between the two calls can deliver a
waiting message once more, under the same attempt id, if the message is sent before its record is read again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from retry_topic.brokers.protocol import BrokerConsumer, Delivery, TrimBroker
from retry_topic.intake.plan import make_way
from retry_topic.intake.records import Decided, Known, dead_letter
from retry_topic.intake.superseded import note_others
from retry_topic.intake.taken import Taken
from retry_topic.intake.transport import SMALLER, Transport, UntilAvailable, logger, once
from retry_topic.message import Message
from retry_topic.message.headers import return_to_origin
from wheel_sched.errors import BrokerError
from wheel_sched.store import Outcome
from wheel_sched.store.core.call import new_token

TRIM_EVERY = 100  # the dead topic is trimmed each time this many dead letters were sent to it


class IntakeFromQueue(Transport):
    """Takes in batches of a queue. Only one thread may use it."""

    _dead_sent = 0  # dead letters that were sent since the dead topic was trimmed

    def take(self, consumer: BrokerConsumer, deliveries: Sequence[Delivery]) -> list[Taken]:
        """Store each delivery, then settle it. A delivery that fails stays unsettled and comes again.

        Raises:
            StoreError, BrokerError: the batch may be partly done. Only stored records were settled.
        """
        return self.settle(consumer, self.store(deliveries))

    def store(
        self, deliveries: Sequence[Delivery], *, again: bool = False, until_available: UntilAvailable = once
    ) -> list[Decided]:
        """Store each delivery as a waiting message or as a dead letter. Returns the decided records, for `settle`.

        Args:
            deliveries: the records that were read.
            again: whether an earlier `store` of the same deliveries failed half-way. Defaults to False.
            until_available: makes the calls. A call whose reply was lost is repeated unchanged, under its token, and
                gets the first answer. Defaults to making each call once.

        Raises:
            StoreError: some deliveries may be stored. The caller may repeat the call.
        """
        records = [self._rules.read(delivery, again=again) for delivery in deliveries]
        self._report_odd(records)
        known = Known(ask=True)
        made, now_ms = self._finish(self._plan(records, known, 0), known, 0, until_available)
        fresh = [one for one in made.fresh if isinstance(one, Decided)]
        dead = [one for one in fresh if one.dead is not None]
        self._schedule([one for one in fresh if one.dead is None], until_available)
        self._bury(dead, now_ms, until_available)
        self._open_keys([(one.key_lock, one.head) for one in dead], until_available)
        notes = [note for one in dead for note in one.notes()]  # waiting messages were stored with their notes
        if notes:
            until_available(lambda: self._counts.raise_to(notes))
        if self._history:
            rows = self._rows(fresh, now_ms)
            until_available(lambda: self._log.append(rows, keep=self._history))
        self._count_spread(one for one in fresh if not one.duplicate)
        return [one for one in made.entries if isinstance(one, Decided)]

    def _schedule(self, waiting: Sequence[Decided], until_available: UntilAvailable) -> None:
        """Store waiting messages. If another message has a record's id, the record is stored under another id."""
        while waiting:
            items, token = [one.item for one in waiting if one.item is not None], new_token()
            notes = [note for one in waiting for note in one.notes()]
            stored = until_available(lambda: self._counts.schedule(items, notes, token=token))  # noqa: B023
            note_others(waiting, stored)
            refused = [
                one for one, outcome in zip(waiting, stored.outcomes, strict=True) if outcome is Outcome.DUPLICATE
            ]
            waiting = self._with_other_ids(refused, until_available)

    def _bury(self, dead: Sequence[Decided], now_ms: int, until_available: UntilAvailable) -> None:
        """Store dead letters. If another message has a letter's id, the letter is stored under another id."""
        while dead:
            letters = [dead_letter(one, now_ms) for one in dead]
            if until_available(lambda: self._store.bury(letters)) == len(letters):  # noqa: B023
                return
            dead = self._with_other_ids(dead, until_available)

    def _with_other_ids(self, refused: Sequence[Decided], until_available: UntilAvailable) -> list[Decided]:
        """Give new ids to the refused records whose id belongs to another stored message, and return these records. The
        store already has the other refused records."""
        if not refused:
            return []
        members = [one.member for one in refused]
        found = until_available(lambda: self._store.get(members, anywhere=True))
        others = [one for one, there in zip(refused, found, strict=True) if make_way(one, there, self._rules)]
        self._open_renamed(others, until_available)
        return others

    # -- settling

    def settle(self, consumer: BrokerConsumer, entries: Sequence[Decided]) -> list[Taken]:
        """Settle stored records, and send dead letters to the dead topic. The call may be repeated.

        Raises:
            BrokerError: it is not known which records are settled. Settle them again.
        """
        consumer.ack([one.delivery for one in entries if one.dead is None])
        self._send_dead(consumer, [one for one in entries if one.dead is not None])
        return self._report(entries)

    def _send_dead(self, consumer: BrokerConsumer, dead: Sequence[Decided]) -> None:
        """Send dead letters, which the store already has, to the dead topic for its readers. If the topic was deleted,
        create it again."""
        topic = self._dead_topic
        pairs = [(one.delivery, return_to_origin(one.message.to(topic))) for one in dead if one.message is not None]
        refused = _refused(consumer, pairs)
        if refused:
            with contextlib.suppress(BrokerError):
                self._connection.broker.create_topic(topic)
        for smaller in SMALLER:
            refused = _refused(
                consumer, [(delivery, smaller(message, delivery.message)) for delivery, message in refused]
            )
        if refused:
            logger.warning("intake.dead_topic_refused: %d letters are tried again later", len(refused))
        self._trim_dead_topic(len(pairs))

    def _trim_dead_topic(self, sent: int) -> None:
        """Trim the dead topic here, because it may have no readers that trim it."""
        self._dead_sent += sent
        broker = self._connection.broker
        if self._dead_kept and self._dead_sent >= TRIM_EVERY and isinstance(broker, TrimBroker):
            self._dead_sent = 0
            with contextlib.suppress(BrokerError):  # the next attempt follows after TRIM_EVERY more letters
                broker.trim(self._dead_topic, self._dead_kept)


def _refused(consumer: BrokerConsumer, pairs: Sequence[tuple[Delivery, Message]]) -> list[tuple[Delivery, Message]]:
    """Publish the message of each pair and settle its delivery. Returns the pairs that the broker refuses for good."""
    if not pairs:
        return []
    refused = []
    for pair, failure in zip(pairs, consumer.forward(pairs), strict=True):
        if failure is not None:
            logger.warning("intake.dead_topic: %s", failure.reason)
            if not failure.transient:
                refused.append(pair)
    return refused

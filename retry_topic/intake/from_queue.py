"""The intake from a queue (Redis Streams, memory): ask the store, plan, store, acknowledge.

A record is acknowledged only when it is stored. A crash in between repeats the step, which finds the id there.

The store keeps an attempt count until the cap by age. For an hour it keeps which records were taken in, so that a
record that is handed out again after a crash is taken in exactly once, also when its message has long gone out. Both
are noted in the step that stores the message. In a namespace of several shards they are noted in a call of their own: a
crash between the two calls, over a message that goes out before the record is read again, delivers that message once
more, under the same attempt id.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from retry_topic.brokers.protocol import BrokerConsumer, Delivery, TrimBroker
from retry_topic.intake.plan import make_way
from retry_topic.intake.records import Decided, Known, Taken
from retry_topic.intake.rules import dead_letter
from retry_topic.intake.transport import Transport, UntilAvailable, logger, once
from retry_topic.message import Message
from retry_topic.message.headers import return_to_origin
from wheel_sched.errors import BrokerError
from wheel_sched.store import Outcome
from wheel_sched.store.core.call import new_token

TRIM_EVERY = 100  # dead letters that were sent to the dead topic


class IntakeFromQueue(Transport):
    """Takes batches of a queue in. One thread."""

    _dead_sent = 0  # since the dead topic was trimmed

    def take(self, consumer: BrokerConsumer, deliveries: Sequence[Delivery]) -> list[Taken]:
        """Store each delivery, then settle it. A delivery that fails stays unsettled and comes again.

        Raises:
            StoreError, BrokerError: nothing of the batch was settled that is not stored.
        """
        return self.settle(consumer, self.store(deliveries))

    def store(
        self, deliveries: Sequence[Delivery], *, again: bool = False, until_available: UntilAvailable = once
    ) -> list[Decided]:
        """Store each delivery as a message that waits, or as a dead letter.

        Args:
            deliveries: what was read.
            again: these were given to `store` before, and it failed half-way. Defaults to False.
            until_available: makes the calls. A call whose reply was lost is repeated as it is, under its token, and
                gets the first answer. Defaults to making each call once.

        Raises:
            StoreError: some of them may be stored; they may be given again.
        """
        records = [self._rules.read(delivery, again=again) for delivery in deliveries]
        self._report_odd(records)
        known = Known(ask=True)
        made, now_ms = self._finish(self._plan(records, known, 0), known, 0, until_available)
        fresh = [one for one in made.fresh if isinstance(one, Decided)]
        dead = [one for one in fresh if one.dead is not None]
        self._schedule([one for one in fresh if one.dead is None], until_available)
        self._bury(dead, now_ms, until_available)
        self._open_keys([(one.gate, one.head) for one in dead], until_available)
        notes = [note for one in dead for note in one.notes()]  # those of the others are stored with them
        if notes:
            until_available(lambda: self._counts.raise_to(notes))
        if self._history:
            rows = self._rows(fresh, now_ms)
            until_available(lambda: self._log.append(rows, keep=self._history))
        self._count_spread(one for one in fresh if not one.duplicate)
        return [one for one in made.entries if isinstance(one, Decided)]

    def _schedule(self, waiting: Sequence[Decided], until_available: UntilAvailable) -> None:
        """Store messages that wait; a record whose id is another message's is stored under an id of its own."""
        while waiting:
            items, token = [one.item for one in waiting if one.item is not None], new_token()
            notes = [note for one in waiting for note in one.notes()]
            stored = until_available(lambda: self._counts.schedule(items, notes, token=token))  # noqa: B023
            refused = [
                one for one, outcome in zip(waiting, stored.outcomes, strict=True) if outcome is Outcome.DUPLICATE
            ]
            waiting = self._with_other_ids(refused, until_available)

    def _bury(self, dead: Sequence[Decided], now_ms: int, until_available: UntilAvailable) -> None:
        """Store dead letters."""
        while dead:
            letters = [dead_letter(one, now_ms) for one in dead]
            if until_available(lambda: self._store.bury(letters)) == len(letters):  # noqa: B023
                return
            dead = self._with_other_ids(dead, until_available)

    def _with_other_ids(self, refused: Sequence[Decided], until_available: UntilAvailable) -> list[Decided]:
        """The records whose id the store has for another message, under another id; the rest are there already."""
        if not refused:
            return []
        members = [one.member for one in refused]
        found = until_available(lambda: self._store.get(members, anywhere=True))
        others = [one for one, there in zip(refused, found, strict=True) if make_way(one, there, self._rules)]
        self._open_renamed(others, until_available)
        return others

    # -- settling

    def settle(self, consumer: BrokerConsumer, entries: Sequence[Decided]) -> list[Taken]:
        """Settle what is stored, and send dead letters to the dead topic. May be repeated.

        Raises:
            BrokerError: which of them are settled is not known; settle them again.
        """
        consumer.ack([one.delivery for one in entries if one.dead is None])
        self._send_dead(consumer, [one for one in entries if one.dead is not None])
        return self._report(entries)

    def _send_dead(self, consumer: BrokerConsumer, dead: Sequence[Decided]) -> None:
        """Tell everybody who listens to the dead topic. The store has the letter; a deleted topic comes back."""
        topic = self._dead_topic
        pairs = [(one.delivery, return_to_origin(one.message.to(topic))) for one in dead if one.message is not None]
        refused = _refused(consumer, pairs)
        if refused:
            with contextlib.suppress(BrokerError):
                self._home.broker.create_topic(topic)
            # as it came, it fits: our own headers can be what was too much
            refused = _refused(consumer, [(delivery, delivery.message.to(topic)) for delivery, _ in refused])
        if refused:
            logger.warning("intake.dead_topic_refused: %d letters are tried again later", len(refused))
        self._trim_dead_topic(len(pairs))

    def _trim_dead_topic(self, sent: int) -> None:
        """Nobody has to read the dead topic, so nobody else would trim it."""
        self._dead_sent += sent
        broker = self._home.broker
        if self._dead_kept and self._dead_sent >= TRIM_EVERY and isinstance(broker, TrimBroker):
            self._dead_sent = 0
            with contextlib.suppress(BrokerError):  # the next time
                broker.trim(self._dead_topic, self._dead_kept)


def _refused(consumer: BrokerConsumer, pairs: Sequence[tuple[Delivery, Message]]) -> list[tuple[Delivery, Message]]:
    """Forward; the pairs that the broker does not accept as they are."""
    if not pairs:
        return []
    refused = []
    for pair, failure in zip(pairs, consumer.forward(pairs), strict=True):
        if failure is not None:
            logger.warning("intake.dead_topic: %s", failure.reason)
            if not failure.transient:
                refused.append(pair)
    return refused

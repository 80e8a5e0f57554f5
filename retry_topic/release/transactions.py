"""Claims that are sent in transactions of the broker: where a dispatcher gets them, and how it publishes them.

`OwnedShards` claims only from shards that this process owns, in the current ownership epoch, with a number above that
of the last sent claim. Such a claim has no lease end, because only the broker knows whether it was sent. The publisher
ends the claim, or the next owner of the shard does. A claim belongs to this process while the process owns its shard.
The dispatcher extends the ownership while it works on the claim. A process acquires a shard when the shard has due
items; if no owner is known, already when items wait in it. It also acquires a shard that has only open claims of
another process, because that process may be dead.

`TransactionalPublisher` sends a claim's messages and its number in one transaction, all or nothing. Messages that the
broker refuses for good first leave the claim in the store. Then the publisher sends the others. Messages that already
have an answer (a limit holds them back) leave the claim in the same way. A claim in doubt gets no answer until the
broker has reported whether it was sent. Until then the claim stays open, even if this process dies.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from retry_topic.brokers.protocol import BrokerInDoubt, ClaimSender, Fenced
from retry_topic.message import Message
from retry_topic.message.encoding import from_fields
from retry_topic.message.headers import lighter
from retry_topic.release.broker_publisher import entries_of
from retry_topic.release.shard_ownership import OwnedShard, ShardOwner
from wheel_sched.dispatcher import Answer, Batch, DispatcherConfig, Failed, PublisherTraits
from wheel_sched.errors import BrokerError, StaleEpoch, StoreError, StoreUnavailable, WheelSchedError
from wheel_sched.escaping import logger_of
from wheel_sched.store import MAX_BATCH, Claim, Claimed, Dead, DelayStore, Done, Next, Outcome, Settlement
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.claim import ClaimOwned
from wheel_sched.store.core.counts import Look, Window
from wheel_sched.store.core.settle import Settle

logger = logger_of("retry_topic.release")

_LOOK_AGAIN_MS = 20  # how soon the dispatcher looks again while this process takes a shard over
_MOST_WORKERS = 8  # shards that send at the same time: they mostly wait for the broker
_AGAIN_S = (0.05, 0.1, 0.2, 0.5, 1.0)
_LATER_MS = 1_000  # a failed message is due again after this time
_STOPPED = Failed("the service is stopping: the message was not sent")


def transactional_config(config: DispatcherConfig, shards: int) -> DispatcherConfig:
    """The settings of a dispatcher that sends its claims in transactions.

    A shard's claims are sent one after another, so there are no more workers than shards. Claims are larger unless
    `batch` was set, because a transaction costs the same for few and many messages.
    """
    return replace(config, workers=min(shards, _MOST_WORKERS), batch=config.batch or MAX_BATCH)


class OwnedShards:
    """A dispatcher's claim source that claims only from shards that this process owns. See the module.

    Args:
        ownership: the shards that this process owns.
    """

    def __init__(self, ownership: ShardOwner) -> None:
        self._ownership = ownership
        self._claiming: dict[str, OwnedShard] = {}  # by token: claim calls that the store has not answered

    def __repr__(self) -> str:
        return f"<OwnedShards {self._ownership!r}>"

    def look(self, shard: int) -> Call[Window]:
        """The call that reads when a shard's next items are due. A dispatcher makes this call after each reconnect."""
        self._ownership.check_server()
        return Call(shard, Look(0, 0))

    def looked(self, window: Window) -> None:
        """Acquire a shard with waiting items before they are due, so that a take-over does not delay them."""
        if window.due_head_ms is not None or window.lease_head_ms is not None:
            self._ownership.prepare(window.shard)

    def claim(self, shard: int, limit: int, epoch: int | None) -> Call[Any]:
        """The call that claims due items, if this process has taken the shard over; else the call that `look`
        returns."""
        owned = self._ownership.acquire(shard)
        if owned is None:
            return Call(shard, Look(0, 0))
        above = self._ownership.last_number(shard, owned)
        operation = ClaimOwned(limit, None, None, owned.epoch, above=above)
        self._claiming[operation.token] = owned
        return Call(shard, operation)

    def claimed(self, call: Call[Any], claim: Claim) -> None:
        """Record a claim under the ownership in which it was requested, even if that ownership has ended since."""
        owned = self._claiming.pop(call.operation.token)
        if claim.items:
            self._ownership.opened(claim.shard, claim.number, owned)

    def failed(self, call: Call[Any], error: Exception) -> None:
        """Handle a failed call.

        If the epoch was stale, the next call asks the store who owns the shard. If the store did not answer, it may
        have lost writes. So before the next claim from each owned shard, the shard's open claims are checked again.
        """
        self._claiming.pop(call.operation.token, None)
        if isinstance(error, StaleEpoch):
            self._ownership.outdated(call.shard)
        elif isinstance(error, StoreUnavailable):
            self._ownership.suspect()

    def next_look_ms(self, shard: int, due_head_ms: int | None, lease_head_ms: int | None, now_ms: int) -> int | None:
        """The next due time of a shard that this process owns; else the time at which it may acquire the shard.

        If another process's shard has open claims, their owner may be dead. So the dispatcher looks again, even without
        due items.
        """
        heads = [head for head in (due_head_ms, lease_head_ms) if head is not None]
        if not heads or self._ownership.is_settled(shard):
            return min(heads, default=None)
        again_ms = self._ownership.elsewhere_until_ms(shard) + 1
        if lease_head_ms is not None or self._ownership.is_taking_over(shard):
            again_ms = max(again_ms, now_ms + _LOOK_AGAIN_MS)
        return again_ms if lease_head_ms is not None or due_head_ms is None else max(due_head_ms, again_ms)

    def extend(self, batch: Batch) -> bool:
        """Extend the ownership of the batch's shard. Returns False if the claim is of an earlier ownership, or on an
        error."""
        try:
            return self._ownership.extend(batch.claim.shard, batch.claim.number)
        except WheelSchedError as error:
            logger.info("ownership.not_extended: %s", error)
            return False

    def to_settle(self, batch: Batch, settlements: Sequence[Settlement]) -> Sequence[Settlement] | None:
        """The settlements of items still in the claim; None while the publisher does not know the claim's result."""
        shard, number = batch.claim.shard, batch.claim.number
        if self._ownership.is_open(shard, number):
            self._ownership.abandon(shard, number)
            return None
        early = batch.ended_early
        return settlements if not early else [each for each in settlements if each.id not in early]


class TransactionalPublisher:
    """A dispatcher's publisher that uses a `ClaimSender`. The dispatcher's claim source is `OwnedShards`.

    Args:
        store: holds the claims.
        ownership: the shards that this process owns; the claim source has the same object.
        sender: sends claims to the broker.
    """

    traits = PublisherTraits(transactional=True)

    def __init__(self, store: DelayStore, ownership: ShardOwner, sender: ClaimSender) -> None:
        self._store = store
        self._ownership = ownership
        self._sender = sender
        self._stopping = threading.Event()

    def publish(self, batch: Batch) -> None:
        """Send a claim in one transaction, and give each item its answer when the result is known.

        Implements `Publisher.publish`.
        """
        claim = batch.claim
        assert isinstance(claim, Claim)  # noqa: S101  # with transactions, the server pushes nothing
        messages = {place: from_fields(*entry) for place, entry in entries_of(batch)}
        answers = {place: answer for place, answer in enumerate(batch.answers) if answer is not None}
        if not self._send(batch, claim, messages, answers):
            return  # the claim stays open
        for place, answer in answers.items():
            batch.answers[place] = answer
        self._ownership.closed(claim.shard, claim.number)
        try:
            self._ownership.refresh()
        except BrokerError as error:
            logger.warning("ownership.not_refreshed: %s", error)

    def refuse(self, item: Claimed, reason: str) -> Answer:
        """The answer for an item that the server could not push: it is dead. Implements `Publisher.refuse`."""
        return Dead(item.id, reason)

    def stop(self) -> None:
        """Let a `publish` that waits for the broker give up."""
        self._stopping.set()

    def _send(self, batch: Batch, claim: Claim, messages: dict[int, Message], answers: dict[int, Answer]) -> bool:
        """Send until the claim's result is known. Returns False if this process cannot learn the result."""
        failures = 0
        early: set[int] = set()
        while True:
            try:
                self._leave(batch, claim, answers, early)
                if not messages:
                    return True
                places = list(messages)
                with self._ownership.sending(claim.shard, claim.number) as ours:
                    if not ours:
                        return False
                    refusals = self._sender.send(claim.shard, claim.number, [messages[place] for place in places])
                if not any(refusals):
                    return self._went_out(batch, claim, places, answers)
                for place, refusal in zip(places, refusals, strict=True):
                    if refusal is None:  # not refused: stays in the next transaction
                        continue
                    smaller = lighter(messages[place])  # sent without the header about its failed attempts
                    if smaller is not None:
                        messages[place] = smaller
                        continue
                    answers[place] = Dead(batch.items[place].id, refusal.reason)
                    del messages[place]
                continue
            except Fenced as error:
                logger.warning("ownership.fenced: %s", error)
                self._ownership.lost(claim.shard, claim.number)
                return False
            except BrokerInDoubt as error:
                logger.warning("ownership.in_doubt: claim %d: %s", claim.number, error)
                went_out = self._ask(claim)
                if went_out is None:
                    return False
                if went_out:
                    return self._went_out(batch, claim, list(messages), answers)
            except (BrokerError, StoreError) as error:
                self._failed(claim, error, failures)
            if self._stopped_after_wait(claim, failures):
                break
            failures += 1
        # Nothing was sent. The messages leave their claim before a later claim is sent, or the claim stays open.
        answers |= dict.fromkeys(messages, _STOPPED)
        try:
            self._leave(batch, claim, answers, early)
        except StoreError:
            return False
        return True

    def _failed(self, claim: Claim, error: Exception, failures: int) -> None:
        """Record that a call has failed. Log it if it is the first failure in a row."""
        self._ownership.broker_failed(claim.shard, error)
        if failures == 0:
            logger.warning("ownership.away: %s", error)

    def _stopped_after_wait(self, claim: Claim, failures: int) -> bool:
        """Wait before the next attempt, then extend the ownership if needed. Returns True when the service stops."""
        if self._stopping.wait(_AGAIN_S[min(failures, len(_AGAIN_S) - 1)]):
            return True
        self._ownership.renew(claim.shard)
        return False

    def _leave(self, batch: Batch, claim: Claim, answers: dict[int, Answer], early: set[int]) -> None:
        """Settle the messages that will not be sent, so that they leave the claim before the other messages are sent.

        Raises:
            StoreError: some messages may have left the claim. Repeat the call.
        """
        leaving = [place for place in answers if place not in early]
        if not leaving:
            return
        later_ms = claim.now_us // 1000 + _LATER_MS
        settlements = [_settlement(batch.items[place], answers[place], later_ms) for place in leaving]
        (settled,) = self._store.execute([Call(claim.shard, Settle(claim.number, settlements))])
        if isinstance(settled, Exception):
            raise settled
        ended = batch.ended_early = batch.ended_early or {}
        for settlement, outcome in zip(settlements, settled.outcomes, strict=True):
            ended[settlement.id] = Outcome.DONE if outcome is Outcome.STALE else outcome  # stale: already settled
        early.update(leaving)

    def _went_out(self, batch: Batch, claim: Claim, places: list[int], answers: dict[int, Answer]) -> bool:
        for place in places:
            answers[place] = Done(batch.items[place].id)
        self._ownership.committed(claim.shard, claim.number)
        return True

    def _ask(self, claim: Claim) -> bool | None:
        """Ask the broker whether a claim in doubt was sent. Returns None if this process cannot find out."""
        failures = 0
        while True:
            try:
                with self._ownership.sending(claim.shard, claim.number) as ours:
                    if not ours:
                        return None
                    number = self._sender.take_over(claim.shard)
                    if not self._ownership.confirmed(claim.shard, claim.number):
                        return None
                return number is not None and number >= claim.number
            except Fenced:
                return None
            except (BrokerError, StoreError) as error:
                self._failed(claim, error, failures)
            if self._stopped_after_wait(claim, failures):
                return None
            failures += 1


def _settlement(item: Claimed, answer: Answer, later_ms: int) -> Settlement:
    if not isinstance(answer, Failed):
        return answer
    return Next(item.id, later_ms) if answer.transient else Dead(item.id, answer.reason)

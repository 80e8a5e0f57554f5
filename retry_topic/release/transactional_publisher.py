"""Transactional publisher: sends a claim's messages and its number in one transaction, all or nothing.

Messages that the broker refuses for good first leave the claim in the store. Then the publisher sends the rest. A claim
in doubt gets no answer until the broker has reported whether it was sent. Until then the claim stays open, even if this
process dies. Messages that already have an answer (a limit holds them back) leave the claim in the same way.
"""

from __future__ import annotations

import threading

from retry_topic.brokers.protocol import BrokerInDoubt, ClaimSender, Fenced, PublishFailure
from retry_topic.message import Message
from retry_topic.message.encoding import from_fields
from retry_topic.release.shard_ownership import ShardOwner
from wheel_sched.dispatcher import Answer, Batch, Failed, PublisherTraits
from wheel_sched.errors import BrokerError, Rejected, StoreError
from wheel_sched.escaping import logger_of
from wheel_sched.store import Claim, Claimed, Dead, DelayStore, Done, Held, Next, Outcome, Settlement, decode_push
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.settle import Settle

logger = logger_of("retry_topic.release")

_AGAIN_S = (0.05, 0.1, 0.2, 0.5, 1.0)
_LATER_MS = 1_000  # an undecided message is due again after this time
_STOPPED = Failed("the service is stopping: it was not sent")


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
        """See `Publisher`."""
        claim = batch.claim
        assert isinstance(claim, Claim)  # noqa: S101  # with transactions, the server pushes nothing
        answers: dict[int, Answer] = {}
        messages = self._messages(batch, answers)
        decided = self._send(batch, claim, messages, answers)
        if not decided:
            return  # the claim stays open
        for place, answer in answers.items():
            batch.answers[place] = answer
        self._ownership.closed(claim.shard, claim.number)
        self._refresh()

    def refuse(self, item: Claimed, reason: str) -> Answer:
        """See `Publisher`."""
        return Dead(item.id, reason)

    def stop(self) -> None:
        """End a `publish` that waits for the broker."""
        self._stopping.set()

    def _messages(self, batch: Batch, answers: dict[int, Answer]) -> dict[int, Message]:
        found = {}
        for place, item in enumerate(batch.items):
            if (answer := batch.answers[place]) is not None:
                answers[place] = answer
                continue
            try:
                form = decode_push(item.body)
                if form.kind != "S":
                    raise Rejected("the body is for a list and holds no message")
                found[place] = from_fields(form.target, form.pieces)
            except Rejected as error:
                answers[place] = Held(item.id, f"quarantine: {error}")
        return found

    def _send(self, batch: Batch, claim: Claim, messages: dict[int, Message], answers: dict[int, Answer]) -> bool:
        """Send until the claim's result is known. False: this process does not learn the result."""
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
                    if refusal is not None:
                        answers[place] = _answer(batch.items[place], refusal)
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
                self._ownership.broker_failed(claim.shard, error)
                if failures == 0:
                    logger.warning("ownership.away: %s", error)
            if self._stopping.wait(_AGAIN_S[min(failures, len(_AGAIN_S) - 1)]):
                return self._stopped(batch, claim, messages, answers, early)
            failures += 1
            self._ownership.renew(claim.shard)

    def _stopped(
        self,
        batch: Batch,
        claim: Claim,
        messages: dict[int, Message],
        answers: dict[int, Answer],
        early: set[int],
    ) -> bool:
        """Nothing was sent: the messages leave their claim before a later claim is sent, or the claim stays open."""
        for place in messages:
            answers[place] = _STOPPED
        try:
            self._leave(batch, claim, answers, early)
        except StoreError:
            return False
        return True

    def _refresh(self) -> None:
        try:
            self._ownership.refresh()
        except BrokerError as error:
            logger.warning("ownership.not_refreshed: %s", error)

    def _leave(self, batch: Batch, claim: Claim, answers: dict[int, Answer], early: set[int]) -> None:
        """Take messages that will not be sent out of the claim, before the rest is sent.

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
            ended[settlement.id] = Outcome.DONE if outcome is Outcome.STALE else outcome  # stale: it left before
        early.update(leaving)

    def _went_out(self, batch: Batch, claim: Claim, places: list[int], answers: dict[int, Answer]) -> bool:
        for place in places:
            answers[place] = Done(batch.items[place].id)
        self._ownership.committed(claim.shard, claim.number)
        return True

    def _ask(self, claim: Claim) -> bool | None:
        """Whether a claim in doubt was sent; None: this process does not learn it."""
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
                self._ownership.broker_failed(claim.shard, error)
                if failures == 0:
                    logger.warning("ownership.away: %s", error)
            if self._stopping.wait(_AGAIN_S[min(failures, len(_AGAIN_S) - 1)]):
                return None
            failures += 1
            self._ownership.renew(claim.shard)


def _settlement(item: Claimed, answer: Answer, later_ms: int) -> Settlement:
    if not isinstance(answer, Failed):
        return answer
    return Next(item.id, later_ms) if answer.transient else Dead(item.id, answer.reason)


def _answer(item: Claimed, refusal: PublishFailure) -> Answer:
    """The answer for a refusal. Refusals are permanent; other failures repeat the whole transaction."""
    return Dead(item.id, refusal.reason)

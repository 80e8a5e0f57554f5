"""The way out in transactions: a claim's messages and its number, all or nothing.

What the broker refuses for good leaves the claim in the store first, then the rest goes out. What is in doubt is not
answered before the broker has told: until then the claim stays open, whatever happens to this process. What is answered
before it comes here (flow control holds it back) leaves the claim in the same way.
"""

from __future__ import annotations

import threading

from retry_topic.brokers.protocol import ClaimSender, Fenced, InDoubt, PublishFailure
from retry_topic.message import Message
from retry_topic.message.stream_encoding import from_fields
from retry_topic.owning.store import OwnedStore
from wheel_sched.dispatcher import Answer, Batch, Failed
from wheel_sched.errors import BrokerError, Rejected, StoreError
from wheel_sched.escaping import logger_of
from wheel_sched.store import Claim, Claimed, Dead, Done, Held, Next, Settlement, decode_push

logger = logger_of("retry_topic.owning")

_AGAIN_S = (0.05, 0.1, 0.2, 0.5, 1.0)
_LATER_MS = 1_000  # until what could not be decided about is decided about again
_STOPPED = Failed("the service is stopping: it was not sent")


class ClaimPublisher:
    """A dispatcher's publisher over a `ClaimSender`; the dispatcher's store must be the same `OwnedStore`."""

    in_order = True

    def __init__(self, store: OwnedStore, sender: ClaimSender) -> None:
        self._store = store
        self._sender = sender
        self._stopping = threading.Event()

    def publish(self, batch: Batch) -> None:
        """See `Publisher`."""
        claim = batch.claim
        assert isinstance(claim, Claim)  # noqa: S101  # a store with a sender pushes nothing by itself
        answers: dict[int, Answer] = {}
        messages = self._messages(batch, answers)
        decided = self._send(batch, claim, messages, answers)
        if not decided:
            return  # the claim stays open
        for place, answer in answers.items():
            batch.answers[place] = answer
        self._store.owned.closed(claim.shard, claim.number)
        self._refresh()

    def refuse(self, item: Claimed, reason: str) -> Answer:
        """See `Publisher`."""
        return Dead(item.id, reason)

    def stop(self) -> None:
        """Let a publish that waits for the broker end."""
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
        """Send until it is decided; False when it is not for us to know."""
        failures = 0
        early: set[int] = set()
        while True:
            try:
                self._leave(batch, claim, answers, early)
                if not messages:
                    return True
                places = list(messages)
                with self._store.owned.sending(claim.shard, claim.number) as ours:
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
                logger.warning("owning.fenced: %s", error)
                self._store.owned.lost(claim.shard, claim.number)
                return False
            except InDoubt as error:
                logger.warning("owning.in_doubt: claim %d: %s", claim.number, error)
                went_out = self._ask(claim)
                if went_out is None:
                    return False
                if went_out:
                    return self._went_out(batch, claim, list(messages), answers)
            except (BrokerError, StoreError) as error:
                self._store.owned.failed(claim.shard, error)
                if failures == 0:
                    logger.warning("owning.away: %s", error)
            if self._stopping.wait(_AGAIN_S[min(failures, len(_AGAIN_S) - 1)]):
                return self._stopped(batch, claim, messages, answers, early)
            failures += 1
            self._store.owned.renew(claim.shard)

    def _stopped(
        self,
        batch: Batch,
        claim: Claim,
        messages: dict[int, Message],
        answers: dict[int, Answer],
        early: set[int],
    ) -> bool:
        """Nothing of it was sent: it leaves its claim before a later one goes out, or stays open."""
        for place in messages:
            answers[place] = _STOPPED
        try:
            self._leave(batch, claim, answers, early)
        except StoreError:
            return False
        return True

    def _refresh(self) -> None:
        try:
            self._store.owned.refresh()
        except BrokerError as error:
            logger.warning("owning.not_refreshed: %s", error)

    def _leave(self, batch: Batch, claim: Claim, answers: dict[int, Answer], early: set[int]) -> None:
        """What will not go out leaves the claim before the rest does."""
        leaving = [place for place in answers if place not in early]
        later_ms = claim.now_us // 1000 + _LATER_MS
        settlements = [_settlement(batch.items[place], answers[place], later_ms) for place in leaving]
        self._store.settle_early(claim, settlements)
        early.update(leaving)

    def _went_out(self, batch: Batch, claim: Claim, places: list[int], answers: dict[int, Answer]) -> bool:
        for place in places:
            answers[place] = Done(batch.items[place].id)
        self._store.owned.committed(claim.shard, claim.number)
        return True

    def _ask(self, claim: Claim) -> bool | None:
        """Whether a claim in doubt went out; None when this process will not know."""
        failures = 0
        while True:
            try:
                with self._store.owned.sending(claim.shard, claim.number) as ours:
                    if not ours:
                        return None
                    number = self._sender.take_over(claim.shard)
                    if not self._store.owned.confirmed(claim.shard, claim.number):
                        return None
                return number is not None and number >= claim.number
            except Fenced:
                return None
            except (BrokerError, StoreError) as error:
                self._store.owned.failed(claim.shard, error)
                if failures == 0:
                    logger.warning("owning.away: %s", error)
            if self._stopping.wait(_AGAIN_S[min(failures, len(_AGAIN_S) - 1)]):
                return None
            failures += 1
            self._store.owned.renew(claim.shard)


def _settlement(item: Claimed, answer: Answer, later_ms: int) -> Settlement:
    if not isinstance(answer, Failed):
        return answer
    return Next(item.id, later_ms) if answer.transient else Dead(item.id, answer.reason)


def _answer(item: Claimed, refusal: PublishFailure) -> Answer:
    """Only failures for good come as refusals: a transaction's others are tried again as a whole."""
    return Dead(item.id, refusal.reason)

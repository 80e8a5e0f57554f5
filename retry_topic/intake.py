"""The intake: from a group's retry topic into the delay store, by policy.

For each failed message it reads the retry headers, takes the greater of the header's attempt count and the store's
own record (so that a broken or forged header cannot lower it), asks the policy, and stores the message under its
next attempt time, or among the dead. Only then is the retry record settled: a crash in between repeats the step,
which finds the id already there.

Attempt ids: `<retry id>[r<replay>].<attempt>`. The store's record is kept until the cap by age. Exactly once per
retry record while the stored message still waits; a crash between storing and settling that outlasts the delay
itself can repeat one delivery (see docs/guarantees.md).
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from retry_topic.brokers.protocol import BrokerConsumer, Delivery
from retry_topic.fingerprint import fingerprint
from retry_topic.headers import RetryState, read, retry_id, sign, verify, write
from retry_topic.home import Home
from retry_topic.message import Message
from retry_topic.names import dead_topic_of, redelivery_topic_of
from retry_topic.policy import Dead as DeadDecision
from retry_topic.policy import PolicySet, RetryPolicy, decide, explain, failure_from
from retry_topic.wire import encode_body
from wheel_sched.store import Item, Outcome

logger = logging.getLogger("retry_topic.intake")

_DAY_MS = 86_400_000
_MAX_MESSAGE_BYTES = 8 * 1024 * 1024  # larger ones are dead-lettered: they would block the server on every step


@dataclass(frozen=True, slots=True)
class Taken:
    """What the intake did with one failed message, for logs, metrics and tests."""

    id: str
    topic: str
    attempt: int
    due_ms: int | None
    dead: str | None
    why: str
    duplicate: bool = False


@dataclass(slots=True)
class _Case:
    delivery: Delivery
    state: RetryState
    topic: str
    policy: RetryPolicy


class Intake:
    """Takes batches of failed messages in. One thread.

    Args:
        home: store and broker.
        group: whose retry topic it is.
        policies: who decides.
        redelivery: "group": due messages come back on the group's own redelivery topic; "origin": on the topic they
            first failed on, seen by every group there.
        secrets: to verify signatures with; the first one signs. Defaults to none: headers are not signed.
        seen: called with each `Taken`. Defaults to nothing.
        rng: randomness of the delays.
    """

    def __init__(
        self,
        home: Home,
        group: str,
        policies: PolicySet,
        *,
        redelivery: str = "group",
        secrets: Sequence[bytes] = (),
        seen: Callable[[Taken], None] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._home = home
        self._group = group
        self.policies = policies
        self._redelivery = redelivery
        self._secrets = secrets
        self._seen = seen
        self._rng = rng or random.Random()

    def take(self, consumer: BrokerConsumer, deliveries: Sequence[Delivery]) -> list[Taken]:
        """Store or bury each delivery, then settle it. What fails stays unsettled and comes again.

        Raises:
            StoreError, BrokerError: nothing of the batch was settled that is not stored.
        """
        cases = [self._case(delivery) for delivery in deliveries]
        known = self._known(cases)
        now_ms = self._home.store.now_ms()
        items: list[Item] = []
        stored: list[tuple[_Case, Taken]] = []
        buried: list[tuple[_Case, Taken, Message]] = []
        tries: list[tuple[str, int, int]] = []
        for case, counts in zip(cases, known, strict=True):
            state = self._counted(case, *counts)
            decision = decide(case.policy, failure_from(state, now_ms=now_ms), now_ms, self._rng)
            why = explain(decision)
            member = _member(state)
            max_attempts = decision.why.max_attempts
            state = replace(state, policy=case.policy.ident, max_attempts=max_attempts)
            expiry_ms = now_ms + (decision.why.max_age_ms or 7 * _DAY_MS)
            tries.append((_tries_key(state), state.attempt, expiry_ms))
            oversized = len(case.delivery.message.value) > _MAX_MESSAGE_BYTES
            if isinstance(decision, DeadDecision) or oversized:
                reason = "oversized" if oversized else decision.reason if isinstance(decision, DeadDecision) else ""
                message = self._message(case, state, self._target(case))
                taken = Taken(member, case.topic, state.attempt, None, reason, why)
                buried.append((case, taken, message))
            else:
                state = replace(state, due_ms=decision.due_ms, delay_ms=decision.delay_ms)
                message = self._message(case, state, self._target(case))
                taken = Taken(member, case.topic, state.attempt, decision.due_ms, None, why)
                items.append(Item(member, decision.due_ms, encode_body(message), case.topic))
                stored.append((case, taken))
        done: list[Taken] = []
        if items:
            outcomes = self._home.store.schedule(items).outcomes
            for (_, taken), outcome in zip(stored, outcomes, strict=True):
                done.append(replace(taken, duplicate=outcome is Outcome.DUPLICATE))
        if buried:
            self._bury(buried, now_ms)
            done += [taken for _, taken, _ in buried]
        self._home.store.remember(tries)
        consumer.ack([case.delivery for case, _ in stored])
        if buried:
            dead_topic = dead_topic_of(self._group)
            failures = consumer.forward([(case.delivery, message.to(dead_topic)) for case, _, message in buried])
            for failure in filter(None, failures):
                logger.warning("intake.dead_topic_refused: %s", failure.reason)
        if self._seen is not None:
            for taken in done:
                self._seen(taken)
        return done

    def _case(self, delivery: Delivery) -> _Case:
        message = delivery.message
        state = read(message.headers)
        if self._secrets:
            state = verify(state, self._secrets)
        source = message.source
        topic = state.original_topic or message.topic
        if state.id is None:
            # somebody wrote to the retry topic without our headers: the record itself is the origin
            place = (source.partition, source.offset) if source else (0, "")
            state = replace(state, id=retry_id(self._group, message.topic, *place))
        for oddity in state.oddities:
            logger.warning("intake.odd_header: %s: %s", state.id, oddity)
        return _Case(delivery, state, topic, self.policies.for_topic(topic))

    def _known(self, cases: Sequence[_Case]) -> list[tuple[int, int]]:
        """(replays, attempts) that the store has on record for each message; 0 = none."""
        replays = self._home.store.remember([(f"{case.state.id}!", 0, 0) for case in cases])
        keys = [_tries_key(replace(case.state, replays=count)) for case, count in zip(cases, replays, strict=True)]
        return list(zip(replays, self._home.store.remember([(key, 0, 0) for key in keys]), strict=True))

    @staticmethod
    def _counted(case: _Case, replays: int, known: int) -> RetryState:
        """The state with counts that no header can lower."""
        state = case.state
        attempt = max(1, state.attempt)
        if known >= attempt:
            # the same record again, after a crash before it was settled; or a header that was set back
            repeated = case.delivery.deliveries > 1 and known == attempt
            attempt = known if repeated else known + 1
        return replace(state, attempt=attempt, replays=max(replays, 0))

    def _target(self, case: _Case) -> str:
        return redelivery_topic_of(self._group) if self._redelivery == "group" else case.topic

    def _message(self, case: _Case, state: RetryState, target: str) -> Message:
        if state.error_fingerprint is None:
            print_ = fingerprint(state.error_class or "", state.error_message or "")
            state = replace(state, error_fingerprint=print_)
        state = replace(state, original_topic=case.topic, consumer_group=self._group, oddities=())
        if self._secrets:
            state = sign(state, self._secrets[0])
        return case.delivery.message.to(target, write(case.delivery.message.headers, state))

    def _bury(self, buried: Sequence[tuple[_Case, Taken, Message]], now_ms: int) -> None:
        graves: list[tuple[Item, str]] = []
        for case, taken, message in buried:
            state = read(message.headers)
            refs = (f"fp:{state.error_fingerprint}",) if state.error_fingerprint else ()
            error = f"{state.error_class or 'no error'}: {state.error_message or ''}".strip(": ")
            graves.append((Item(taken.id, now_ms, encode_body(message), case.topic, refs), f"{taken.dead}: {error}"))
        self._home.store.bury(graves)


def _tries_key(state: RetryState) -> str:
    return f"{state.id}:{state.replays}"


def _member(state: RetryState) -> str:
    replay = f"r{state.replays}" if state.replays else ""
    return f"{state.id}{replay}.{state.attempt}"

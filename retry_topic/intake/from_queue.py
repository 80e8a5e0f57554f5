"""The intake: from a group's retry topic into the delay store, by policy.

For each failed message it reads the retry headers, takes the greater of the header's attempt count and the store's
own record (so that a broken or forged header cannot lower it), asks the policy, and stores the message under its
next attempt time, or among the dead. Only then is the retry record settled: a crash in between repeats the step,
which finds the id already there.

Attempt ids: `<retry id>[r<replay>].<attempt>`. The store's record is kept until the cap by age. Which retry records
were taken in is kept for an hour, so a record that is handed out again after a crash within that time is taken in
exactly once, also when the message has long gone out: both are noted in the step that stores the message. In a
namespace of several shards they are noted in a call of their own; a crash between the two, over a message that goes
out before the next look, delivers it once more, as the attempt that it is.

An attempt is counted once. When two copies of one delivery fail, the second failure tells nothing new: it is settled,
neither scheduled nor buried (`cases.is_copy`). Nor is a message that has succeeded, as far as the store knows:
consumers tell it of those that have passed it.

Two records with one id are taken for the same only when their payload, key and other headers are the same. Whatever
else claims an id that is taken (copied headers, a forger) is stored under an id of its own: nothing is dropped for
what its headers say. What cannot be stored at all is told in the store and kept whole in the dead topic.
"""

from __future__ import annotations

import contextlib
import random
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from retry_topic.brokers.protocol import BrokerConsumer, Delivery, TrimBroker
from retry_topic.cases import Case, Taken, count_on, counted, is_copy, replays_of
from retry_topic.decision_log import log_decisions
from retry_topic.fingerprint import fingerprint
from retry_topic.flow import count_spread
from retry_topic.headers import (
    MAX_COUNT,
    Restating,
    content_id,
    homeward,
    read,
    retry_id,
    sign,
    verify,
    with_spring,
    write,
)
from retry_topic.headers.names import FIELDS
from retry_topic.home import Home
from retry_topic.message import Message
from retry_topic.names import NAMED_AFTER_GROUP, GroupTopics
from retry_topic.origins import Origins
from retry_topic.policy import Dead, PolicySet, Retry, RetryPolicy, decide, failure_from
from retry_topic.wire import encode_body
from wheel_sched.errors import BrokerError, Rejected
from wheel_sched.escaping import logger_of
from wheel_sched.store import ENDED, Item, Outcome
from wheel_sched.store.flow_control import FlowControl
from wheel_sched.store.key_gates import KeyGates, ref_of, route_of

if TYPE_CHECKING:
    from retry_topic.herds import Ready

logger = logger_of("retry_topic.intake")

T = TypeVar("T")

DAY_MS = 86_400_000
_TAKEN_FOR_MS = 3_600_000  # how long a retry record is known to be taken in: many times a service's `idle_ms`
MAX_BODY_BYTES = 8 * 1024 * 1024  # larger ones are dead-lettered: they would block the server on every step
_MAX_NAME = 249  # characters of a topic or ref in the store; a header may carry one more


# what is told of a failed message instead of what its headers said
_SHARED = ("policy", "max_attempts", "error_fingerprint", "original_topic", "consumer_group")
_OWN = ("started_ms", "due_ms", "delay_ms", "signature")
_restate = Restating(_SHARED, _OWN)
RESTATED = frozenset(FIELDS[name].header for name in (*_SHARED, *_OWN))

TRIM_EVERY = 100  # dead letters told

_fingerprint = lru_cache(maxsize=1024)(fingerprint)  # errors come in herds


class Insist(Protocol):
    """Does one call on the store, and does the same call again until the store is there."""

    def __call__(self, call: Callable[[], T]) -> T: ...


def _once(call: Callable[[], T]) -> T:
    return call()


class Tellable(Protocol):
    """What is through, and can say what became of it."""

    def taken(self) -> Taken: ...


class Intake:
    """Takes batches of failed messages in. One thread.

    Args:
        home: store and broker.
        group: whose retry topic it is.
        policies: who decides.
        redelivery: "group": due messages come back on the group's own redelivery topic; "origin": on the topic they
            first failed on, seen by every group there.
        origins: the topics that "origin" may send to. Defaults to none: those that the group reads.
        spring: tell Spring Kafka's headers beside ours. Defaults to False.
        secrets: to verify signatures with; the first one signs. Defaults to none: headers are not signed.
        seen: called with each `Taken`; what it raises is logged. Defaults to nothing.
        history: rows of the attempt history the store keeps, see `retry_topic.history`. Defaults to 0: none.
        reference_above: payloads of more bytes stay in the retry topic, and the store holds where. Defaults to 0: none.
        dead_kept: about how many letters stay in the dead topic, but for those that a group has yet to read there;
            brokers that bound their topics themselves, as Kafka, are left to it. Defaults to 0: all.
        topics: of the group. Defaults to those named after it.
        rng: randomness of the delays.
    """

    def __init__(
        self,
        home: Home,
        group: str,
        policies: PolicySet,
        *,
        redelivery: str = "group",
        origins: Sequence[str] = (),
        spring: bool = False,
        secrets: Sequence[bytes] = (),
        seen: Callable[[Taken], None] | None = None,
        history: int = 0,
        reference_above: int = 0,
        dead_kept: int = 0,
        topics: GroupTopics = NAMED_AFTER_GROUP,
        rng: random.Random | None = None,
    ) -> None:
        self._home = home
        self._group = group
        self._redelivery_topic = topics.redelivery_of(group)
        self._dead_topic = topics.dead_of(group)
        self._dead_kept = dead_kept
        self._dead_told = 0  # since the dead topic was trimmed
        self.policies = policies
        self._origins = Origins(home.broker, group, origins) if redelivery == "origin" else None
        self._spring = spring
        self._secrets = secrets
        self._seen = seen
        self._history = history
        self._reference_above = reference_above
        self._rng = rng or random.Random()
        self._gates = KeyGates(home.store)
        self._flows = FlowControl(home.store)

    def take(self, consumer: BrokerConsumer, deliveries: Sequence[Delivery]) -> list[Taken]:
        """Store or bury each delivery, then settle it. What fails stays unsettled and comes again.

        Raises:
            StoreError, BrokerError: nothing of the batch was settled that is not stored.
        """
        return self.settle(consumer, self.store(deliveries))

    def store(self, deliveries: Sequence[Delivery], *, again: bool = False, insist: Insist = _once) -> list[Case]:
        """Store or bury each delivery.

        Args:
            deliveries: what was read.
            again: these were given to `store` before, and it failed half-way. Defaults to False.
            insist: what does the calls. A call whose reply was lost is repeated as it is, under its token, and so
                answered as the first time. Defaults to doing each once.

        Raises:
            StoreError: some of them may be stored; they may be given again.
        """
        cases = [self._case(delivery, again) for delivery in deliveries]
        self._keep(cases, insist)
        return cases

    def _keep(self, cases: Sequence[Case], insist: Insist) -> None:
        """Count, decide and store, step by step; what was done before a crash is known when it is repeated."""
        store = self._home.store
        self._count(cases, insist)
        fresh = [case for case in cases if not case.duplicate]
        now_ms = insist(store.now_ms)
        for case in fresh:
            self._decide(case, now_ms, insist)
        self._schedule([case for case in fresh if case.dead is None], insist)
        dead = [case for case in fresh if case.dead is not None]
        self._bury(dead, now_ms, insist)
        self._give_way(dead, insist)
        tries = self._notes(dead)  # those of the others are stored with them
        if self._history:
            rows = self._rows(fresh, now_ms)
            insist(lambda: store.remember(tries, logged=rows, keep=self._history))
        else:
            insist(lambda: store.remember(tries))
        self._count_spread(fresh)

    def _notes(self, cases: Sequence[Case]) -> list[tuple[str, int, int]]:
        """What is to be known of cases: the attempt each has had, and that its record is taken in."""
        tries = [(case.tries_key, case.counted_attempt, case.keep_until_ms) for case in cases]
        return tries + [(self._record_key(case), 1, case.now_ms + _TAKEN_FOR_MS) for case in cases]

    def settle(self, consumer: BrokerConsumer, cases: Sequence[Case]) -> list[Taken]:
        """Settle what is stored, and tell the dead topic of the dead. May be repeated.

        Raises:
            BrokerError: which of them are settled is not known; settle them again.
        """
        consumer.ack([case.delivery for case in cases if case.dead is None])
        self._to_dead_topic(consumer, [case for case in cases if case.dead is not None])
        return self._tell(cases)

    # -- reading

    def _case(self, delivery: Delivery, again: bool) -> Case:
        message = delivery.message
        state = given = read(message.headers)
        if self._secrets:
            state = verify(state, message, self._secrets, self._group)
            if not state.unsigned and state.id == content_id(self._group, message.value, message.key):
                state = replace(state, unsigned=True)  # the id was made here, and records alike share it
        if state.id is None:
            state = replace(state, id=self._own_id(delivery), published_ms=None)
        elif state.published_ms is not None and state.consumer_group != self._group:
            state = replace(state, consumer_group=self._group)
        for oddity in state.oddities:
            logger.warning("intake.odd_header: %s: %s", state.id, oddity)
        topic = state.original_topic or message.topic
        repeated = again or delivery.deliveries > 1
        return Case(delivery, given, state, topic, repeated, head=state.stem)

    def _own_id(self, delivery: Delivery) -> str:
        """An id for a record that has none of its own: its place in the retry topic."""
        message, source = delivery.message, delivery.message.source
        place = (source.partition, source.offset) if source else (0, "")
        return retry_id(self._group, message.topic, *place)

    def _record_key(self, case: Case) -> str:
        return f"{self._own_id(case.delivery)}#"

    def _count(self, cases: Sequence[Case], insist: Insist) -> None:
        """Give each case the count that no header can lower, and find out which were taken in already."""
        store = self._home.store

        def known(keys: list[str]) -> list[int]:
            return insist(lambda: store.remember([(key, 0, 0) for key in keys]))

        told = [case.state for case in cases]
        replays = known([replays_of(state) for state in told])
        for case, count in zip(cases, replays, strict=True):
            case.state = counted(case.state, count)
            case.head = case.state.stem  # as its ordering key knows it
        taken_in = known([self._record_key(case) for case in cases])
        behind: list[tuple[Case, int, int]] = []
        counts = known([case.tries_key for case in cases])
        shared: dict[str, int] = {}  # counts of ids that several records have
        copies: list[Case] = []
        for case, state, times, count, taken in zip(cases, told, replays, counts, taken_in, strict=True):
            if case.state.unsigned and not taken and count != ENDED:
                count_on(case, count, shared)
            elif not taken and is_copy(state, times, count):
                case.through = count == ENDED
                copies.append(case)
                case.is_there_already()
            elif taken or count >= case.state.attempt:
                behind.append((case, case.state.attempt, taken))
                case.state = replace(case.state, attempt=max(count, case.state.attempt))
        self._let_go(copies, insist)
        members = [case.member for case, _, _ in behind]
        stored = insist(lambda: store.get(members, anywhere=True))
        for (case, claimed, taken), found in zip(behind, stored, strict=True):
            here = case.is_in(found)
            if here and found is not None and found.state == "dead":
                continue  # it is buried and told to the dead topic once more
            if here or taken:
                case.duplicate = True
            elif not (case.repeated and claimed == case.state.attempt):
                case.state = replace(case.state, attempt=min(case.state.attempt + 1, MAX_COUNT))

    def _let_go(self, copies: Sequence[Case], insist: Insist) -> None:
        """Second copies of what has failed already, or has succeeded: said, and no ordering key waits for them.

        A key whose head has failed keeps it: the retry of the first copy opens it. One that was closed by the failing
        copy of a message that has come to its end would wait for ever.
        """
        for case in copies:
            known = "the message has ended" if case.through else f"attempt {case.given.attempt} is counted"
            logger.info("intake.second_copy: %s: %s already; nothing comes of this copy", case.state.stem, known)
        self._give_way([case for case in copies if case.through], insist)

    # -- deciding

    def _policy_of(self, case: Case) -> RetryPolicy:
        """The policy of the topic; a record that nobody signed gets no more attempts than any message does."""
        policy = self.policies.for_topic(case.topic)
        if case.state.unsigned and case.state.attempt >= (least := self.policies.least_attempts):
            return replace(policy, max_attempts=least, rules=())
        return policy

    def _decide(self, case: Case, now_ms: int, insist: Insist) -> None:
        case.now_ms = now_ms
        policy = self._policy_of(case)
        decision = decide(policy, failure_from(case.state, now_ms=now_ms), now_ms, self._rng)
        case.decision = decision
        if isinstance(decision, Dead):
            case.due_ms, case.dead = None, decision.reason
        else:
            case.due_ms, case.dead = decision.due_ms, None
        if self._goes_to_origin(case) and self._origins is not None:
            insist(partial(self._origins.look_up, case.topic))
            if case.dead is None and case.topic not in self._origins:
                case.due_ms, case.dead = None, "unknown-origin"
        # counted from when it comes back: a long delay must not outlive the record
        case.keep_until_ms = (case.due_ms or now_ms) + (decision.why.max_age_ms or 7 * DAY_MS)
        self._write(case)

    def _write(self, case: Case) -> None:
        """The message as it is to be sent, or shown as a dead letter; one that cannot wait is dead."""
        state, message, decision = case.state, case.delivery.message, case.decision
        fingerprint = state.error_fingerprint or _fingerprint(state.error_class or "", state.error_message or "")
        policy = (None, None) if decision is None else (decision.why.policy, decision.why.max_attempts)
        delay_ms = decision.delay_ms if isinstance(decision, Retry) else state.delay_ms
        signature = None
        if self._secrets:
            told = replace(state, original_topic=case.topic, consumer_group=self._group)
            signature = sign(told, message, self._secrets[0]).signature
        shared, own = (*policy, fingerprint, case.topic, self._group), (None, case.due_ms, delay_ms, signature)
        if state is case.given and not self._spring:
            headers = _restate(message.headers, state, shared, own)
        else:
            told = replace(state, **dict(zip((*_SHARED, *_OWN), shared + own, strict=True)))
            headers = write(message.headers, told)
            if self._spring:
                headers = with_spring(headers, told, dead=case.dead is not None)
        home_again = self._goes_to_origin(case) and self._origins is not None and case.topic in self._origins
        written = message.to(case.topic if home_again else self._redelivery_topic, headers)
        stored, source = written, message.source
        if self._reference_above and len(stored.value) > self._reference_above and source is not None:
            stored = stored.by_reference(source)
        case.item, problem = _item(case, stored)
        if case.dead is None and problem:
            case.due_ms, case.dead = None, problem
        case.message = None if case.dead is None else written  # its body says the same

    def _goes_to_origin(self, case: Case) -> bool:
        """Whether it is to come back where it first failed, if that is a topic it may be sent to."""
        elsewhere = case.topic != case.delivery.message.topic
        return self._origins is not None and elsewhere and case.state.gate is None and not case.state.unsigned

    # -- storing

    def _schedule(self, cases: Sequence[Case], insist: Insist) -> None:
        if not cases:
            return
        items, token = [case.item for case in cases if case.item is not None], uuid.uuid4().hex
        tries = self._notes(cases)
        outcomes = insist(lambda: self._home.store.schedule(items, token=token, tries=tries)).outcomes
        taken = [case for case, outcome in zip(cases, outcomes, strict=True) if outcome is Outcome.DUPLICATE]
        self._schedule([case for case in self._others_ids(taken, insist) if self._renamed(case)], insist)

    def _bury(self, cases: Sequence[Case], now_ms: int, insist: Insist) -> None:
        if not cases:
            return
        graves = [as_grave(case, now_ms) for case in cases]
        if insist(lambda: self._home.store.bury(graves)) < len(graves):
            self._bury([case for case in self._others_ids(cases, insist) if self._renamed(case)], now_ms, insist)

    def _give_way(self, cases: Sequence[Case], insist: Insist) -> None:
        """Heads of ordering keys that are dead let the next ones follow."""
        rows = [(case.state.gate, case.head) for case in cases if case.state.gate is not None]
        if rows:
            insist(lambda: self._gates.given_up(rows))

    def _others_ids(self, cases: Sequence[Case], insist: Insist) -> list[Case]:
        """Those whose id the store has for another message; the rest are there already."""
        others = []
        members = [case.member for case in cases]
        stored = insist(lambda: self._home.store.get(members, anywhere=True))
        for case, found in zip(cases, stored, strict=True):
            told = case.dead is not None and found is not None and found.state == "dead" and not found.body
            here = case.is_in(found) and (case.repeated or not case.state.unsigned)  # unsigned ones are many
            if told or here or (found is None and case.repeated):
                case.duplicate = case.dead is None
            else:
                others.append(case)
        return others

    def _renamed(self, case: Case) -> bool:
        """Give a case an id of its own; False when it has that already, and so is there."""
        own_id = self._own_id(case.delivery)
        if case.state.id == own_id:
            return False
        logger.warning("intake.id_is_taken: %s is another message's; stored as %s", case.state.id, own_id)
        case.state = replace(case.state, id=own_id, replays=0, published_ms=None)
        self._write(case)
        if case.state.gate is not None:  # its key waits for the other id, which is not this message's
            self._gates.given_up([(case.state.gate, case.head)])
        return True

    def _count_spread(self, fresh: Iterable[Case | Ready]) -> None:
        stored = (one for one in fresh if one.dead is None and not one.duplicate)
        rows = ((one.item.topic, one.decision) for one in stored if one.item is not None)
        count_spread(self._flows, self._group, self.policies, rows)

    def _rows(self, cases: Sequence[Case], now_ms: int) -> list[tuple[str, bytes]]:
        """What the history is to say of these."""
        shards = None if self._home.by_source else self._home.store.shards
        rows = [case.attempt(shards, now_ms) for case in cases]
        return [(row.id, row.encode()) for row in rows]

    # -- settling

    def _to_dead_topic(self, consumer: BrokerConsumer, buried: Sequence[Case]) -> None:
        """Tell everybody who listens to the dead topic. The store has the letter; a deleted topic comes back."""
        topic = self._dead_topic
        pairs = [(case.delivery, homeward(case.message.to(topic))) for case in buried if case.message is not None]
        refused = _refused(consumer, pairs)
        if refused:
            with contextlib.suppress(BrokerError):
                self._home.broker.create_topic(topic)
            # as it came, it fits: our own headers can be what was too much
            refused = _refused(consumer, [(delivery, delivery.message.to(topic)) for delivery, _ in refused])
        if refused:
            logger.warning("intake.dead_topic_refused: %d letters are tried again later", len(refused))
        self._trim_dead_topic(len(pairs))

    def _trim_dead_topic(self, told: int) -> None:
        """Nobody need read the dead topic, so nobody else would trim it."""
        self._dead_told += told
        broker = self._home.broker
        if self._dead_kept and self._dead_told >= TRIM_EVERY and isinstance(broker, TrimBroker):
            self._dead_told = 0
            with contextlib.suppress(BrokerError):  # the next time
                broker.trim(self._dead_topic, self._dead_kept)

    def _tell(self, cases: Sequence[Tellable]) -> list[Taken]:
        done = [case.taken() for case in cases]
        log_decisions(cases, done)
        if self._seen is not None:
            for taken in done:
                try:
                    self._seen(taken)
                except Exception:  # an observer must not hold up what it observes
                    logger.exception("intake.seen_failed")
        return done


def _refused(consumer: BrokerConsumer, pairs: Sequence[tuple[Delivery, Message]]) -> list[tuple[Delivery, Message]]:
    """Forward; the pairs that will not go as they are."""
    if not pairs:
        return []
    refused = []
    for pair, failure in zip(pairs, consumer.forward(pairs), strict=True):
        if failure is not None:
            logger.warning("intake.dead_topic: %s", failure.reason)
            if not failure.transient:
                refused.append(pair)
    return refused


def _item(case: Case, message: Message) -> tuple[Item, str | None]:
    """What the store is to hold, and why it cannot let it wait, if so. The dead topic keeps what it cannot hold."""
    topic, gate = case.topic[:_MAX_NAME], case.state.gate
    refs, route = ((), None) if gate is None else ((ref_of(gate),), route_of(gate))
    try:
        item = Item(case.member, case.due_ms, encode_body(message), topic, refs, route)
        item.check()
    except Rejected as error:
        return Item(case.member, None, b"", topic, refs, route), f"unstorable: {error}"
    return item, "oversized" if len(item.body) > MAX_BODY_BYTES else None


def as_grave(case: Case, now_ms: int) -> tuple[Item, str]:
    """The dead letter the store keeps of a case, and why it died."""
    state = case.state
    group = state.error_fingerprint or _fingerprint(state.error_class or "", state.error_message or "")
    refs = (f"fp:{group}"[:_MAX_NAME], *(case.item.refs if case.item is not None else ()))
    error = f"{state.error_class or 'no error'}: {state.error_message or ''}".strip(": ")
    item = case.item or Item(case.member, now_ms, b"", case.topic[:_MAX_NAME])
    return replace(item, due_ms=now_ms, refs=refs), f"{case.dead}: {error}"

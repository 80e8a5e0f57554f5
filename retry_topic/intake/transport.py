"""The common part of the intakes from a queue and from a log: it answers a plan's questions and reports results.

A plan has questions when it must know counts or items of the store, or topics of the broker, before it can decide.

Only one thread may use it.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from retry_topic.brokers.protocol import Delivery
from retry_topic.connection import Connection
from retry_topic.consumer.outcome import bounded
from retry_topic.intake.origins import Origins
from retry_topic.intake.plan import Entry, Plan, Work, plan
from retry_topic.intake.records import MAX_BODY_BYTES, Decided, IntakeRecord, Known, Rules
from retry_topic.intake.superseded import log_superseded, rows_of_replaced, warn_of_ordering_keys
from retry_topic.intake.taken import Taken
from retry_topic.intake.templates import Prepared, Templates
from retry_topic.message import Message
from retry_topic.message.headers import lighter
from retry_topic.message.topic_names import NAMED_AFTER_GROUP, GroupTopics
from retry_topic.policy import PolicySet
from retry_topic.release.flow import count_spread
from wheel_sched.duration import format_duration
from wheel_sched.escaping import logger_of, warn_with_traceback
from wheel_sched.store.attempt_counts import AttemptCounts
from wheel_sched.store.history import History
from wheel_sched.store.ordering import OrderedKeys
from wheel_sched.store.rate_limits import RateLimits

logger = logger_of("retry_topic.intake")

T = TypeVar("T")


def _as_record(message: Message, record: Message) -> Message:
    return record.to(message.topic)


def _lighter(message: Message, record: Message) -> Message:
    return lighter(message) or message


SMALLER: tuple[Callable[[Message, Message], Message], ...] = (
    lambda message, _: message,
    _lighter,
    _lighter,
    _as_record,
)
"""What to send if the dead topic has refused a letter, one function for each further attempt.

Each function gets the letter of the previous attempt and the record that was read. The first attempt sends the same
letter again, because the topic may have been absent. Otherwise the letter may be too large: the next two attempts leave
out headers that no decision needs. The last attempt sends the record as it was read, which fits.
"""


class UntilAvailable(Protocol):
    """Makes a call, and repeats it until store and broker are available."""

    def __call__(self, call: Callable[[], T]) -> T: ...


def once(call: Callable[[], T]) -> T:
    """Make a call once: an `UntilAvailable` that does not repeat."""
    return call()


class Transport:
    """An intake of one group. See `from_queue` and `from_log`.

    Args:
        connection: the connection (store and broker).
        group: the owner of the retry topic.
        policies: the retry policies.
        redelivery: "group": due messages go to the group's own redelivery topic. "origin": they go to the topic on
            which they first failed, if `Rules.returns_to_origin` allows it. Defaults to "group".
        origins: the topics that "origin" may send to. Defaults to none: the topics that the group reads.
        spring: write Spring Kafka's headers beside ours. Defaults to False.
        secrets: to verify signatures with; the first one signs. Defaults to none: headers are not signed.
        seen: called with each `Taken`. An exception that it raises is logged. Defaults to nothing.
        history: how many rows of the attempt history the store keeps, see `retry_topic.history`. Defaults to 0: none.
        reference_above: payloads of more bytes stay in the retry topic, and the store holds a reference. Defaults to 0:
            the store holds all payloads.
        dead_kept: about how many letters stay in the dead topic. Letters that a group has not read there stay as well.
            Brokers that bound their topics themselves, like Kafka, do not need it. Defaults to 0: all letters stay.
        topics: the group's topics. Defaults to topics named after the group.
        rng: the source of randomness for delays.
        cached: whether the decision cache is used. Defaults to True.
    """

    from_log = False

    def __init__(
        self,
        connection: Connection,
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
        cached: bool = True,
    ) -> None:
        self._connection, self._store, self._group = connection, connection.store, group
        self._dead_topic, self._dead_kept = topics.dead_of(group), dead_kept
        self._origins = Origins(connection.broker, group, origins) if redelivery == "origin" else None
        self._seen, self._history = seen, history
        self._counts, self._log = AttemptCounts(connection.store), History(connection.store)
        self._locks, self._flows = OrderedKeys(connection.store), RateLimits(connection.store)
        self._cached = cached and not spring and not secrets  # a template cannot write Spring's headers or signatures
        self._rules = Rules(
            group,
            policies,
            topics.redelivery_of(group),
            self.from_log,
            self._origins,
            spring,
            secrets,
            reference_above,
            rng or random.Random(),
            route_fair=connection.store.shards > 1 and not self.from_log,
        )
        self.policies = policies
        self._warned: set[str] = set()  # the topics about which `warn_of_ordering_keys` has warned

    @property
    def policies(self) -> PolicySet:
        """The retry policies. Setting them empties the decision cache."""
        return self._rules.policies

    @policies.setter
    def policies(self, policies: PolicySet) -> None:
        self._rules.policies = policies
        longest = self._rules.reference_above or MAX_BODY_BYTES
        self._templates = Templates(policies, self._rules.rng, longest) if self._cached else None

    # -- planning

    def _finish(
        self, made: Plan, known: Known, now_ms: int, until_available: UntilAvailable, route: str | None = None
    ) -> tuple[Plan, int]:
        """Answer a plan's questions and plan again, until none is left. Returns the plan and the time that it used."""
        while True:
            self._open_keys([(one.key_lock, one.head) for one in made.copies if one.ended], until_available)
            if not made.questions:
                break
            now_ms = self._answer(made, known, until_available)
            made = self._plan(made.entries, known, now_ms, route)
        self._open_renamed(made.renamed, until_available)
        return made, now_ms

    def _plan(self, work: Iterable[Work], known: Known, now_ms: int, route: str | None = None) -> Plan:
        made = plan(work, known, now_ms, self._rules, templates=self._templates, route=route)
        self._report_odd(made.odd)
        for one in made.copies:
            number = one.record.given.attempt
            known_as = "the message has ended" if one.ended else f"attempt {number} is counted"
            logger.info(
                "intake.second_copy: %s: %s already; nothing is stored of this copy", one.state.id_base, known_as
            )
        return made

    def _answer(self, asking: Plan, known: Known, until_available: UntilAvailable) -> int:
        """Read what a plan asks for from store and broker, and add it to `known`. Returns the store's time."""
        keys, ids, topics = asking.questions.keys, asking.questions.ids, asking.questions.topics
        if keys:
            asked = [(key, 0, 0) for key in dict.fromkeys(keys)]
            counts = until_available(lambda: self._counts.raise_to(asked))
            known.counts.update((key, count) for (key, _, _), count in zip(asked, counts, strict=True))
        if ids:
            members = [*dict.fromkeys(ids)]
            found = until_available(lambda: self._store.get(members, anywhere=True))
            known.items.update(zip(members, found, strict=True))
        for topic in dict.fromkeys(topics):
            if self._origins is not None:
                until_available(partial(self._origins.look_up, topic))
            known.origins.add(topic)
        return until_available(self._store.now_ms)

    # -- ordering keys

    def _open_keys(self, heads: Iterable[tuple[str | None, str]], until_available: UntilAvailable) -> None:
        """Open the ordering keys of heads that get no retry, so that the next messages of these keys are delivered.

        A head is the message that keeps its key closed. When a head gets a retry, the retry opens the key. Three kinds
        of heads get none: a dead head, a copy of a message that has already ended, and a head that got another id.

        `heads`: for each head the lock of its ordering key, and the head's id base. Heads without a key are ignored.
        """
        rows = [(key_lock, head) for key_lock, head in heads if key_lock is not None]
        if rows:
            until_available(lambda: self._locks.given_up(rows))

    def _open_renamed(self, renamed: Sequence[Decided], until_available: UntilAvailable) -> None:
        """Log records that got another id, and open their ordering keys.

        Without this call, such a key would stay closed until a message with the record's former id has ended.
        """
        for one in renamed:
            taken = f"{one.head}.{one.state.attempt}"
            logger.warning("intake.id_is_taken: %s is another message's; stored as %s", taken, one.member)
        self._open_keys([(one.key_lock, one.head) for one in renamed], until_available)

    # -- reporting

    def with_spans(self, deliveries: Iterable[Delivery]) -> Sequence[Delivery]:
        """The deliveries, each with its intake span as the last step in its headers; unchanged without tracing."""
        tracing = self._connection.tracing
        return [*deliveries] if tracing is None else [tracing.taking(one, self._group) for one in deliveries]

    def leave(self, deliveries: Iterable[Delivery]) -> None:
        """End the intake spans that `with_spans` began for these deliveries, except the spans of stored records."""
        if self._connection.tracing is not None:
            self._connection.tracing.leave(deliveries)

    def _report_odd(self, records: Iterable[IntakeRecord]) -> None:
        for record in records:
            for oddity in record.state.oddities:
                logger.warning("intake.odd_header: %s: %s", record.state.id, oddity)

    def _count_spread(self, stored: Iterable[Entry]) -> None:
        rows = ((one.item.topic, one.decision) for one in stored if one.dead is None and one.item is not None)
        count_spread(self._flows, self._group, self.policies, rows)

    def _rows(self, stored: Iterable[Entry], now_ms: int) -> list[tuple[str, bytes]]:
        """The history rows of stored records."""
        shards = None if self._connection.by_source else self._store.shards
        full = [one.decided() if isinstance(one, Prepared) else one for one in stored]
        rows = [*(one.attempt(shards, now_ms) for one in full), *rows_of_replaced(full, now_ms)]
        return [(row.id, row.encode()) for row in rows]

    def _report(self, entries: Sequence[Entry]) -> list[Taken]:
        """Log the results of stored records and pass them to the observer `seen`."""
        done = [one.taken() for one in entries]
        _log_decisions(entries, done)
        log_superseded(entries)
        warn_of_ordering_keys(entries, self.policies, self._warned)
        if self._connection.tracing is not None:
            for entry, taken in zip(entries, done, strict=True):
                self._connection.tracing.taken(entry.record.state.trace_step, taken)
        if self._seen is not None:
            for taken in done:
                try:
                    self._seen(taken)
                except Exception:  # an observer must not stop the intake
                    logger.exception("intake.seen_failed")
        return done


def _log_decisions(entries: Sequence[Entry], done: Sequence[Taken]) -> None:
    """Log each decision about a failure that was not known: retries at INFO, dead letters at WARNING.

    A line contains the message's id that its handler saw, and its id in the store. It never contains the payload. A
    line below the logger's level is not formatted.
    """
    retries = logger.isEnabledFor(logging.INFO)
    for one, taken in zip(entries, done, strict=True):
        if taken.dead is not None:
            if not taken.duplicate:
                _log_death(one, taken)
        elif retries and not taken.duplicate and taken.decision is not None and taken.superseded_by is None:
            logger.info(
                "intake.retry: message %s of %s, attempt %d: next attempt in %s; stored as %s",
                *_named(one, taken),
                format_duration(getattr(taken.decision, "delay_ms", 0)),
                bounded(taken.id),
            )


def _log_death(one: Entry, taken: Taken) -> None:
    error, trace = "", None
    if isinstance(one, Decided):
        state = one.state
        trace = state.traceback
        error = f": {state.error_class or 'no error'}: {state.error_message or ''}".rstrip(": ")
    reason = bounded(f"{taken.dead}{error}")
    warn_with_traceback(
        logger,
        trace,
        "intake.dead: message %s of %s, attempt %d: %s; it is a dead letter, stored as %s",
        *_named(one, taken),
        reason,
        bounded(taken.id),
    )


def _named(one: Entry, taken: Taken) -> tuple[str, str, int]:
    """The message's id, topic and attempt, for a log line. The id is the one that the consumer's log lines show.

    An item's id may be longer, see `RetryState.known_as`.
    """
    seen = (one.record.given.id or one.state.id) if isinstance(one, Decided) else None
    return bounded(seen or taken.id.rpartition(".")[0] or taken.id), bounded(taken.topic), taken.attempt

"""The intake from a log: a slice of a partition, what becomes of its records and its new position in one step.

    Kafka: group.retry ─► slice ─► {items, dead letters, position} in one script ─► delay store

Whoever comes late with a slice (a member that has lost its partition, a call repeated after a crash) finds the position
moved on and stores nothing; a store that has fallen back after a failover has the slices since read to it again. So
each record of a retry topic is taken in exactly once, also when its message has long gone out.

The attempt records that outlive a message are written after it, and lost with a crash in between: then its headers
alone count, as they do for a message that comes by another partition.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from retry_topic.brokers.protocol import LogReader, Slice
from retry_topic.headers import MAX_COUNT, retry_id
from retry_topic.intake import Case, Insist, Intake, Taken, as_grave, counted
from retry_topic.message import Message
from retry_topic.names import dead_topic_of
from wheel_sched.errors import BrokerUnavailable, StalePosition
from wheel_sched.store import Item, Outcome, Position, Stored
from wheel_sched.store.operations import new_token

logger = logging.getLogger("retry_topic.intake")


class SliceIntake(Intake):
    """Takes slices in. One thread."""

    _source = ""  # of the slice whose ordered messages are being stored

    def take_slice(self, reader: LogReader, part: Slice, insist: Insist) -> list[Taken]:
        """Store a slice, or read it again from where the store says.

        Args:
            reader: whose slice it is.
            part: the slice.
            insist: does a call until store and broker are there.
        """
        taken_in = [self._case(delivery, again=False) for delivery in part.deliveries]
        cases = [case for case in taken_in if case.state.gate is None]
        if len(cases) < len(taken_in):
            self._take_ordered(part, [case for case in taken_in if case.state.gate is not None], insist)
        self._count_alone(cases, insist)
        now_ms = insist(self._home.store.now_ms)
        fresh = [case for case in cases if not case.duplicate]
        for case in fresh:
            self._decide(case, now_ms)
        fresh = self._distinct(fresh)
        dead = [case for case in fresh if case.dead is not None]
        if dead:
            insist(lambda: self._tell_dead(dead))  # before they are stored: a crash tells it twice, never not at all
        waiting = [case for case in fresh if case.dead is None and case.item is not None]
        items = [self._routed(case.item, part.source) for case in waiting if case.item is not None]
        graves = [(self._routed(item, part.source), reason) for item, reason in (as_grave(c, now_ms) for c in dead)]
        stored = self._accept(part, items, graves, insist)
        if isinstance(stored, StalePosition):
            self._rewind(reader, part.source, stored.position, part.expected, insist)
            return []
        reader.done(part)
        refused = [
            case for case, outcome in zip(waiting, stored.outcomes, strict=False) if outcome is Outcome.DUPLICATE
        ]
        self._schedule([case for case in self._others_ids(refused, insist) if self._renamed(case)], insist)
        tries = [(case.tries_key, case.state.attempt, case.keep_until_ms) for case in fresh]
        rows = self._rows(fresh, now_ms) if self._history else []
        insist(lambda: self._home.store.remember(tries, logged=rows, keep=self._history))
        return self._tell(taken_in)

    def look_back(self, reader: LogReader, insist: Insist) -> None:
        """The store's server may be another one, which knows less: what it does not know of is read to it again.

        The next slice would find that out as well; but what has fallen out of the store does not wait for it.
        """
        expected = reader.expected()
        known = insist(lambda: self._home.store.positions(list(expected)))
        for (source, here), there in zip(expected.items(), known, strict=True):
            if there != here:
                self._rewind(reader, source, there, here, insist)

    def _rewind(
        self, reader: LogReader, source: str, position: int | None, expected: int | None, insist: Insist
    ) -> None:
        logger.warning("intake.rewound: %s is taken in up to %s, not %s", source, position, expected)
        insist(lambda: reader.rewind(source, position))

    def _take_ordered(self, part: Slice, cases: Sequence[Case], insist: Insist) -> None:
        """Store messages of ordering keys beside their gates, which may lie elsewhere than the slice's position.

        So they are stored before it moves. A crash in between repeats them; what is repeated is known by its record for
        an hour, and beyond that by being there still.
        """
        self._source = part.source
        self._keep(cases, insist)
        dead = [case for case in cases if case.dead is not None and not case.duplicate]
        if dead:
            insist(lambda: self._tell_dead(dead))

    def _record_key(self, case: Case) -> str:
        """Under the name for ever of its partition: a retry topic made anew has other records at old places."""
        source = case.delivery.message.source
        offset = source.offset if source is not None else ""
        return f"{retry_id(self._group, self._source, 0, offset)}#"

    def _accept(
        self, part: Slice, items: Sequence[Item], graves: Sequence[tuple[Item, str]], insist: Insist
    ) -> Stored | StalePosition:
        position = Position(part.source, part.expected, part.next)
        token = new_token()

        def accept() -> Stored | StalePosition:
            try:
                return self._home.store.accept(position, items, graves, token=token)
            except StalePosition as stale:
                # a repeat after a lost reply, later than the store remembers its token
                return stale if stale.position != part.next else Stored([Outcome.STORED] * len(items), 0)

        return insist(accept)

    def _routed(self, item: Item, source: str) -> Item:
        """A slice lies in one shard with its position."""
        return replace(item, route=source) if self._home.by_source else item

    def _count_alone(self, cases: Sequence[Case], insist: Insist) -> None:
        """As `_count`; whether a record was taken in before, its position says."""
        store = self._home.store
        # mostly the headers are right about the replays, so that both are asked for at once
        asked = [f"{case.state.id}!" for case in cases] + [case.tries_key for case in cases]
        known = insist(lambda: store.remember([(key, 0, 0) for key in asked]))
        counts = dict(zip(asked, known, strict=True))
        for case in cases:
            case.state = counted(case.state, counts[f"{case.state.id}!"])
        others = list({case.tries_key for case in cases} - counts.keys())
        if others:
            known = insist(lambda: store.remember([(key, 0, 0) for key in others]))
            counts.update(zip(others, known, strict=True))
        behind: list[Case] = []
        for case in cases:
            if (count := counts[case.tries_key]) >= case.state.attempt:
                case.state = replace(case.state, attempt=count)
                behind.append(case)
        members = [case.member for case in behind]
        stored = insist(lambda: store.get(members, anywhere=True))
        for case, found in zip(behind, stored, strict=True):
            if case.is_in(found):
                case.duplicate = True
            else:
                case.state = replace(case.state, attempt=min(case.state.attempt + 1, MAX_COUNT))

    def _distinct(self, cases: Sequence[Case]) -> list[Case]:
        """One of several records of one failure; another message under its id gets an id of its own."""
        seen: dict[str, Message | None] = {}
        kept = []
        for case in cases:
            if case.member in seen:
                same = case.message is not None and seen[case.member] == case.message
                if same or not self._renamed(case):
                    case.duplicate, case.decision = True, None
                    continue
            seen[case.member] = case.message
            kept.append(case)
        return kept

    def _tell_dead(self, dead: Sequence[Case]) -> None:
        """Put them into the group's dead topic.

        Raises:
            BrokerUnavailable: some may be there; repeat it.
        """
        topic = dead_topic_of(self._group)
        messages = [case.message.to(topic) for case in dead if case.message is not None]
        failures = self._home.broker.publish(messages)
        again = []
        for case, failure in zip(dead, failures, strict=False):
            if failure is not None and failure.transient:
                raise BrokerUnavailable(f"{failure.reason}: dead letters were not told; repeat it")
            if failure is not None:
                logger.warning("intake.dead_topic: %s", failure.reason)
                again.append(case.delivery.message.to(topic))  # as it came, it fits
        if again:
            self._home.broker.create_topic(topic)
            for failure in self._home.broker.publish(again):
                if failure is not None:
                    logger.error("intake.dead_topic_refused: %s; the store has the letter", failure.reason)

"""The intake from a log: a slice of a partition, what becomes of its records and its new position in one step.

    Kafka: group.retry ─► slice ─► {items, dead letters, counts, position} in one script ─► delay store

Whoever comes late with a slice (a member that has lost its partition, a call repeated after a crash) finds the position
moved on and stores nothing; a store that has fallen back after a failover has the slices since read to it again. So
each record of a retry topic is taken in exactly once, also when its message has long gone out.

Headers are mostly right about how often a message failed, and ids are mostly free. So nobody asks the store beforehand:
the step compares with its attempt records, raises these, and refuses the whole slice where one of them knows more or an
id is taken. Then it is asked, and the slice is decided anew, or what has another message's id gets one of its own.
Nothing of a slice is ever stored behind its position.

Messages of ordering keys lie beside their gates. Where that is another shard than the slice's they are stored there
first, with a position of the same source in that shard: of a slice that is read again after a crash in between, what
lies before that position is there already.

Most records are made ready by their herds (`herds`); one that is not, and all of a slice that was refused, go the long
way through `Intake`.

The next slice is read while the store works on the last (`offer`, `finish`), and is sent when that one is through: so
one slice is underway at most, and none is sent that follows one the store has refused.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from retry_topic.brokers.protocol import Delivery, LogBatch, LogReader
from retry_topic.cases import Case, Taken, count_on, counted, is_copy, is_same, replays_of
from retry_topic.herds import Herds, Ready
from retry_topic.intake import MAX_BODY_BYTES, Insist, Intake, as_grave
from retry_topic.message import Message
from retry_topic.message.headers import MAX_COUNT, return_to_origin
from wheel_sched.errors import BrokerUnavailable, StaleCount, StalePosition, TakenId
from wheel_sched.escaping import logger_of
from wheel_sched.store import ENDED, Item, Outcome, Position, Stored, Tries
from wheel_sched.store.key_gates import route_of
from wheel_sched.store.operations import new_token
from wheel_sched.store.plans import shard_of

logger = logger_of("retry_topic.intake")

_ASK_NS = 1_000_000_000  # how long the store's time is counted on from what it said


@dataclass(slots=True)
class _Work:
    """A slice on its way: what was read, what is to be stored of it, and where the store's answer comes from.

    `read` lies in the shard of `position`; `elsewhere` is what was stored in others before.
    """

    reader: LogReader
    part: LogBatch
    position: Position
    now_ms: int
    read: list[Case | Ready] = field(default_factory=list)
    elsewhere: list[Case] = field(default_factory=list)
    fresh: list[Case | Ready] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)
    graves: list[tuple[Item, str]] = field(default_factory=list)
    tries: list[Tries] = field(default_factory=list)
    told: set[str] = field(default_factory=set)  # members of the dead that the dead topic has
    token: str = ""
    answer: Callable[[], Stored] | None = None

    def cases(self) -> list[Case]:
        """What was read, all as the long way has it."""
        cases = [one.case() if isinstance(one, Ready) else one for one in self.read]
        self.read = [*cases]
        return cases


class SliceIntake(Intake):
    """Takes slices in. One thread.

    `insist` does a call until store and broker are there; what it raises leaves the slice underway unanswered: the
    store's position tells its fate, and a reader made anew goes on from there.
    """

    _underway: _Work | None = None
    _herds: Herds | None = None
    _asked_ns: int | None = None
    _said_ms = 0

    @property
    def busy(self) -> bool:
        """Whether a slice is underway: `finish` it before waiting for another."""
        return self._underway is not None

    def take_slice(self, reader: LogReader, part: LogBatch, insist: Insist) -> list[Taken]:
        """Store a slice, or read it again from where the store says.

        Args:
            reader: whose slice it is.
            part: the slice.
            insist: does a call until store and broker are there.
        """
        return [*self.offer(reader, part, insist), *self.finish(insist)]

    def offer(self, reader: LogReader, part: LogBatch, insist: Insist) -> list[Taken]:
        """Send a slice off, once the one before it is through; what became of that one.

        A slice of the same source behind one that the store refused is dropped: the reader comes to it again.
        """
        position = Position(part.source, part.expected, part.next)
        work = _Work(reader, part, position, self._now_ms(insist))
        self._read(work, insist)
        before, rewound = self._end(insist)
        if rewound != part.source:
            if self._home.store.shards > 1:
                self._store_elsewhere(work, insist)
            self._plan(work, insist, counted=False)
            work.answer = self._home.store.begin_accept(
                position, work.items, work.graves, tries=work.tries, token=work.token
            )
            self._underway = work
        return before

    def finish(self, insist: Insist) -> list[Taken]:
        """Wait for the slice underway; what became of it, nothing when there is none."""
        return self._end(insist)[0]

    def _end(self, insist: Insist) -> tuple[list[Taken], str | None]:
        """What became of the slice underway, and its source when that is read again from elsewhere."""
        work, self._underway = self._underway, None
        if work is None:
            return [], None
        part = work.part
        stored = self._stored(work, insist)
        if isinstance(stored, StalePosition):
            self._rewind(work.reader, part.source, stored.position, part.expected, insist)
            return [], part.source
        work.reader.done(part)
        self._note(work, insist)
        return self._tell([*work.elsewhere, *work.read]), None

    def _note(self, work: _Work, insist: Insist) -> None:
        """What is stored is counted, for people."""
        if self._history:
            rows = self._rows([one.case() if isinstance(one, Ready) else one for one in work.fresh], work.now_ms)
            insist(lambda: self._home.store.log(rows, keep=self._history))
        self._count_spread(work.fresh)

    def _read(self, work: _Work, insist: Insist) -> None:
        """Decide what is to become of each record, by its headers."""
        herds = self._herds
        if herds is None or herds.policies is not self.policies:
            longest = self._reference_above or MAX_BODY_BYTES
            herds = self._herds = Herds(self.policies, self._rng, longest)
        told_alike = not self._spring and not self._secrets  # then headers have what no herd knows of
        for delivery in work.part.deliveries:  # each through all of it: what is at hand is quick to reach
            ready = herds.ready(delivery, work.now_ms) if told_alike else None
            if ready is not None:
                work.read.append(ready)
                continue
            case = self._decided(delivery, work.now_ms, insist)
            work.read.append(case)
            if told_alike and case.gate is None:
                herds.learn(case)

    def _decided(self, delivery: Delivery, now_ms: int, insist: Insist) -> Case:
        """A record as its headers have it."""
        case = self._case(delivery, again=False)
        self._decide(case, now_ms, insist)
        return case

    def look_back(self, reader: LogReader, insist: Insist) -> None:
        """The store's server may be another one, which knows less: what it does not know of is read to it again.

        The next slice would find that out as well; but what has fallen out of the store does not wait for it. The one
        underway is waited for, so that what the reader expects is what the store has said.
        """
        self._end(insist)
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

    def _store_elsewhere(self, work: _Work, insist: Insist) -> None:
        """Store messages of ordering keys whose gates lie in other shards than the slice; it is left with the rest."""
        shards = self._home.store.shards
        here = shard_of(work.part.source, shards)
        away: dict[int, list[Case]] = {}
        rest: list[Case | Ready] = []
        for one in work.read:
            if isinstance(one, Case) and one.gate and (shard := shard_of(route_of(one.gate), shards)) != here:
                away.setdefault(shard, []).append(one)
            else:
                rest.append(one)
        for shard, cases in away.items():
            work.elsewhere += self._store_in(shard, work, cases, insist)
        work.read = rest

    def _store_in(self, shard: int, work: _Work, cases: list[Case], insist: Insist) -> list[Case]:
        """Store messages of a slice in a shard where only keys with an order bring it, up to the slice's end."""
        part, place = work.part, (work.part.source, shard)
        while True:
            known = self._known.get(place)
            if known is not None and known > (part.expected or 0):  # it was read before, and not stored to its end
                for case in cases:
                    if case.offset < known:
                        case.is_there_already()
            left = [case for case in cases if not case.duplicate]
            if not left:
                return cases
            position = Position(part.source, known, part.next, route_of(left[0].gate or ""))
            ahead = _Work(work.reader, part, position, work.now_ms, [*left])
            self._plan(ahead, insist, counted=False)
            stored = self._stored(ahead, insist)
            if isinstance(stored, Stored):
                self._known[place] = part.next
                self._note(ahead, insist)
                return cases
            if known is not None and (stored.position or 0) < known:
                logger.warning(
                    "intake.shard_fell_back: shard %d knows of %s up to %s, not %s: what it had stored since is lost",
                    *(shard, part.source, stored.position, known),
                )
            self._known[place] = stored.position
            # what was decided by counts that another member raised with these very records is nothing to go by
            cases = [self._decided(case.delivery, work.now_ms, insist) for case in cases]

    @cached_property
    def _known(self) -> dict[tuple[str, int], int | None]:
        """Positions of sources in shards that are not theirs, as last heard of."""
        return {}

    def _stored(self, work: _Work, insist: Insist) -> Stored | StalePosition:
        """The store's word on a slice; one that it refused is put to it anew."""

        def accept() -> Stored | StalePosition | StaleCount | TakenId:
            answer, work.answer = work.answer, None  # once; after that the slice is sent again, under its token
            try:
                if answer is not None:
                    return answer()
                return self._home.store.accept(
                    work.position, work.items, work.graves, tries=work.tries, token=work.token
                )
            except (StaleCount, TakenId) as refusal:
                return refusal
            except StalePosition as stale:
                # a repeat after a lost reply, later than the store remembers its token
                mine = stale.position == work.part.next
                return Stored([Outcome.STORED] * len(work.items), 0) if mine else stale

        while not isinstance(stored := insist(accept), Stored | StalePosition):
            if isinstance(stored, StaleCount):
                self._decide_anew(work, work.cases(), insist)
            else:
                self._make_way(work, insist)
            self._plan(work, insist, counted=True)
        return stored

    def _plan(self, work: _Work, insist: Insist, *, counted: bool) -> None:
        """What is to be stored of a slice that is decided, by counts of the store or of headers; its dead are told."""
        # nobody is told of a death by headers alone, and what nobody signed has its number from the store
        asked = [one for one in work.read if isinstance(one, Case) and (one.dead is not None or one.state.unsigned)]
        if asked and not counted:
            self._decide_anew(work, asked, insist)
        fresh = self._distinct(work)
        dead = [one for one in fresh if isinstance(one, Case) and one.dead is not None]
        news = [case for case in dead if case.member not in work.told]
        if news:
            insist(lambda: self._tell_dead(news))  # before they are stored: a crash tells it twice, never not at all
            work.told.update(case.member for case in news)
        work.token, work.fresh = new_token(), fresh
        if self._home.by_source:  # a slice lies in one shard with its position
            for one in fresh:
                if one.item is not None and one.gate is None:
                    one.item.route = work.part.source
        work.items = [one.item for one in fresh if one.dead is None and one.item is not None]
        work.graves = [as_grave(case, work.now_ms) for case in dead]
        work.tries = [record for one in fresh for record in one.tries()]

    def _decide_anew(self, work: _Work, cases: Sequence[Case], insist: Insist) -> None:
        """Decide by the store's counts."""
        self._count_alone(cases, insist)
        work.now_ms = insist(self._home.store.now_ms)
        for case in cases:
            if not case.duplicate:
                self._decide(case, work.now_ms, insist)

    def _make_way(self, work: _Work, insist: Insist) -> None:
        """Leave out what is there already; what has another message's id gets one of its own."""
        cases = [case for case in work.cases() if not case.duplicate]
        members = [case.member for case in cases]
        route = (work.position.route or work.part.source) if self._home.by_source else None
        stored = insist(lambda: self._home.store.get(members, route=route))
        for case, found in zip(cases, stored, strict=True):
            if found is None:
                continue
            told = case.dead is not None and found.state == "dead" and not found.body
            if told or (case.is_in(found) and not case.state.unsigned):  # unsigned ones are many
                case.is_there_already()
            else:
                self._give_another_id(case)

    def _now_ms(self, insist: Insist) -> int:
        """The store's time or a little later; it is asked once a second."""
        store, ns = self._home.store, time.monotonic_ns()
        if not store.ticks or self._asked_ns is None or ns - self._asked_ns > _ASK_NS:
            self._asked_ns, self._said_ms = ns, insist(store.now_ms)
            return self._said_ms
        return self._said_ms - (self._asked_ns - ns) // 1_000_000  # up to whole ms: nothing is due early by it

    def _count_alone(self, cases: Sequence[Case], insist: Insist) -> None:
        """As `_count`; whether a record was taken in before, its position says."""
        store = self._home.store
        # mostly the headers are right about the replays, so that both are asked for at once
        told = [case.state for case in cases]
        asked = [replays_of(case.state) for case in cases] + [case.tries_key for case in cases]
        known = insist(lambda: store.remember([(key, 0, 0) for key in asked]))
        counts = dict(zip(asked, known, strict=True))
        for case in cases:
            case.state = counted(case.state, counts[replays_of(case.state)])
            case.head = case.state.stem  # as its ordering key knows it
        others = list({case.tries_key for case in cases} - counts.keys())
        if others:
            known = insist(lambda: store.remember([(key, 0, 0) for key in others]))
            counts.update(zip(others, known, strict=True))
        behind: list[Case] = []
        copies: list[Case] = []
        shared: dict[str, int] = {}
        for case, state in zip(cases, told, strict=True):
            count = counts[case.tries_key]
            if case.state.unsigned and count != ENDED:
                count_on(case, count, shared)
            elif is_copy(state, case.state.replays, count):
                case.through = count == ENDED
                copies.append(case)
                case.is_there_already()
            elif count >= case.state.attempt:
                case.state = replace(case.state, attempt=count)
                behind.append(case)
        self._let_go(copies, insist)
        members = [case.member for case in behind]
        stored = insist(lambda: store.get(members, anywhere=True))
        for case, found in zip(behind, stored, strict=True):
            if case.is_in(found):
                case.is_there_already()
            else:
                case.state = replace(case.state, attempt=min(case.state.attempt + 1, MAX_COUNT))

    def _distinct(self, work: _Work) -> list[Case | Ready]:
        """One of several records of one failure; another message under its id gets an id of its own."""
        fresh = [one for one in work.read if not one.duplicate]
        if len({one.member for one in fresh}) == len(fresh):
            return fresh  # as usual
        seen: dict[str, Message] = {}
        kept: list[Case | Ready] = []
        for case in work.cases():
            if case.duplicate:
                continue
            member = case.member
            if member in seen:
                if is_same(seen[member], case.delivery.message):
                    case.is_there_already()
                    continue
                while member in seen:
                    self._give_another_id(case)
                    member = case.member
            seen[member] = case.delivery.message
            kept.append(case)
        return kept

    def _give_another_id(self, case: Case) -> None:
        """The one of its place, or, where that is taken as well (who knows how they are made can do so), any."""
        if not self._renamed(case):
            case.state = replace(case.state, id=uuid.uuid4().hex, published_ms=None)
            self._write(case)

    def _tell_dead(self, dead: Sequence[Case]) -> None:
        """Put them into the group's dead topic.

        Raises:
            BrokerUnavailable: some may be there; repeat it.
        """
        topic = self._dead_topic
        messages = [return_to_origin(case.message.to(topic)) for case in dead if case.message is not None]
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

"""The intake from a log (Kafka): stores the results of a partition's batch and its position in one step.

    group.retry ─► log batch ─► {items, dead letters, counts, position} in one script ─► delay store

A member may send a batch late: it has lost its partition, or it repeats a call after a crash. The store then has
another position and stores nothing. A store that lost writes in a failover gets the lost batches again. So each record
of a retry topic is taken in exactly once, even if its message was sent long ago.

Usually the attempt counts in headers are right and the ids are free. So the intake does not ask the store beforehand.
The script compares the counts and raises them. It refuses the whole batch when the store has already counted one of the
attempts or has one of the ids. Then the intake asks the store and plans the batch again. No item of a batch is ever
stored after the batch's position.

A message with an ordering key belongs in the shard of its key. If another shard has the position of the batch's source,
the message is stored first, in the shard of its key, and that shard gets a position of the source too. If the process
then crashes and the batch is read again, the key's shard already has the records before its position.

The intake works one batch ahead: it reads and plans the next batch while the store works on the present one (`offer`,
`finish`). It sends the next batch after the store has stored the present one. So at most one batch is in flight, and no
batch is sent after one that the store refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from retry_topic.brokers.protocol import LogBatch, LogReader
from retry_topic.connection import Connection
from retry_topic.intake.plan import Entry, Plan, Work, make_way, records_of
from retry_topic.intake.records import Decided, IntakeRecord, Known
from retry_topic.intake.store_time import StoreTime
from retry_topic.intake.superseded import note_others
from retry_topic.intake.taken import Taken
from retry_topic.intake.templates import Prepared
from retry_topic.intake.transport import SMALLER, Transport, UntilAvailable, logger
from retry_topic.message import Message
from retry_topic.message.headers import return_to_origin
from retry_topic.policy import PolicySet
from wheel_sched.errors import BrokerUnavailable, StaleCount, StalePosition, TakenId
from wheel_sched.store import Outcome, Position, Stored
from wheel_sched.store.core.call import new_token
from wheel_sched.store.core.plans import shard_of
from wheel_sched.store.log_intake import LogIntake
from wheel_sched.store.ordering import route_of


@dataclass(slots=True)
class _Batch:
    """A log batch in flight: its records, its plan, and the pending answer of the store.

    `elsewhere`: the messages with ordering keys that were already stored in other shards.
    """

    reader: LogReader
    part: LogBatch
    position: Position
    now_ms: int
    plan: Plan
    elsewhere: list[Decided] = field(default_factory=list)
    announced: set[str] = field(default_factory=set)  # ids of dead letters that the dead topic has
    token: str = ""
    answer: Callable[[], Stored] | None = None


class IntakeFromLog(Transport):
    """Takes in log batches. Only one thread may use it.

    The argument `until_available` of each method repeats a call until store and broker are available. If it raises an
    error, the batch in flight has no answer. The store's position then shows whether the batch was stored, and a new
    reader continues from that position.
    """

    from_log = True
    _underway: _Batch | None = None

    def __init__(self, connection: Connection, group: str, policies: PolicySet, **settings: Any) -> None:
        super().__init__(connection, group, policies, **settings)
        self._intake = LogIntake(connection.store)
        self._time = StoreTime(connection.store)
        # for each source and each other shard: the source's position that was last read there
        self._positions: dict[tuple[str, int], int | None] = {}

    @property
    def busy(self) -> bool:
        """Whether a batch is in flight. If so, call `finish` before waiting for another batch."""
        return self._underway is not None

    def take(self, reader: LogReader, part: LogBatch, until_available: UntilAvailable) -> list[Taken]:
        """Store a batch, or have the reader read it again from the store's position. Returns the results.

        Args:
            reader: the reader of the batch.
            part: the batch.
            until_available: repeats a call until store and broker are available.
        """
        return [*self.offer(reader, part, until_available), *self.finish(until_available)]

    def offer(self, reader: LogReader, part: LogBatch, until_available: UntilAvailable) -> list[Taken]:
        """Wait until the batch in flight is stored, and then send this batch. Returns the results of the stored batch.

        If the store refused the batch in flight, and this batch has the same source, this batch is not sent: the reader
        reads both again.
        """
        now_ms = self._now_ms(until_available)
        part = replace(part, deliveries=self.with_spans(part.deliveries))
        try:
            made = self._plan(part.deliveries, Known(), now_ms, self._route(part))
            batch = _Batch(reader, part, Position(part.source, part.expected, part.next), now_ms, made)
            before, rewound = self._end_in_flight(until_available)
            if rewound != part.source:
                if self._time.stepped:  # the plan was made with a time that is too early
                    batch.now_ms = until_available(self._time.ask)
                    batch.plan = made = self._plan(
                        records_of(batch.plan.entries), Known(), batch.now_ms, self._route(part)
                    )
                self._send(batch, made, until_available)
            return before
        finally:
            if self._underway is None or self._underway.part is not part:  # this batch was not sent
                self.leave(part.deliveries)

    def _now_ms(self, until_available: UntilAvailable) -> int:
        """The store's time (epoch ms), or a time just after it, so that no due time is early by the store's clock.

        A store that works on a batch answers only afterwards. So it is asked once a second at most, and again when the
        answer to a batch shows that its clock has stepped forward.
        """
        estimate_ms = self._time.estimate() if self.busy else None
        return until_available(self._time.ask) if estimate_ms is None else estimate_ms

    def _send(self, batch: _Batch, made: Plan, until_available: UntilAvailable) -> None:
        """Complete the plan `made` of a batch, and send the batch to the store."""
        if self._store.shards > 1 and self._store_elsewhere(batch, until_available):
            made = self._plan(batch.plan.entries, Known(), batch.now_ms, self._route(batch.part))
        self._complete(batch, made, Known(), until_available)
        batch.answer = self._intake.begin_accept(
            *(batch.position, batch.plan.items, batch.plan.dead_letters),
            counts=batch.plan.counts,
            token=batch.token,
        )
        self._underway = batch

    def finish(self, until_available: UntilAvailable) -> list[Taken]:
        """Wait for the batch in flight. Returns the batch's results; none if no batch is in flight."""
        return self._end_in_flight(until_available)[0]

    def positions(self, sources: Sequence[str]) -> list[int | None]:
        """The positions up to which the store has taken in these sources; None for a source that the store does not
        know."""
        return self._intake.positions(sources)

    def look_back(self, reader: LogReader, until_available: UntilAvailable) -> None:
        """Compare the store's positions with the reader's: the store may be on another server now, which lost writes.

        The reader's position of a source is where its next batch must begin (`LogReader.expected`). If the two differ,
        the reader reads again from the store's position. The store would also find the loss with the next batch, but
        that batch may come late. This call first waits for the batch in flight, so that both positions include it.
        """
        self._end_in_flight(until_available)
        expected = reader.expected()
        known = until_available(lambda: self.positions(list(expected)))
        for (source, here), there in zip(expected.items(), known, strict=True):
            if there != here:
                self._rewind(reader, source, there, here, until_available)

    def _rewind(
        self,
        reader: LogReader,
        source: str,
        position: int | None,
        expected: int | None,
        until_available: UntilAvailable,
    ) -> None:
        logger.warning(
            "intake.rewound: the store has %s up to %s, not up to %s: it is read again", source, position, expected
        )
        until_available(lambda: reader.rewind(source, position))

    def _end_in_flight(self, until_available: UntilAvailable) -> tuple[list[Taken], str | None]:
        """Wait until the store has answered the batch in flight.

        Returns:
            If the batch was stored: its results, and None. If the store refused the batch: no results, and the source
            of the batch; the reader then reads the source again from the store's position. If no batch was in flight:
            no results, and None.
        """
        batch, self._underway = self._underway, None
        if batch is None:
            return [], None
        try:
            return self._ended(batch, until_available)
        finally:
            self.leave(batch.part.deliveries)

    def _ended(self, batch: _Batch, until_available: UntilAvailable) -> tuple[list[Taken], str | None]:
        """Wait until the store has answered `batch`, see `_end_in_flight`."""
        part = batch.part
        stored = self._stored(batch, until_available)
        if isinstance(stored, StalePosition):
            self._rewind(batch.reader, part.source, stored.position, part.expected, until_available)
            return [], part.source
        batch.reader.done(part)
        self._note(batch, until_available)
        return self._report([*batch.elsewhere, *batch.plan.decided]), None

    def _note(self, batch: _Batch, until_available: UntilAvailable) -> None:
        """Write the history rows of the stored messages, and count those whose policy delays due times at random."""
        if self._history:
            rows = self._rows(batch.plan.fresh, batch.now_ms)
            until_available(lambda: self._log.append(rows, keep=self._history))
        self._count_spread(batch.plan.fresh)

    # -- planning

    def _route(self, part: LogBatch) -> str | None:
        """The text that chooses the shard of a batch's items without an ordering key: the batch's source. The source's
        position lies in that shard too. None: each item's own route or id chooses its shard.
        """
        return part.source if self._connection.by_source else None

    def _complete(self, batch: _Batch, made: Plan, known: Known, until_available: UntilAvailable) -> None:
        """Complete the plan `made`, and make it the plan of the batch.

        A plan has questions when it needs counts or items of the store (`Questions`). This method reads them and plans
        again until no question is left. Then it sends the plan's dead letters to the dead topic.
        """
        route = self._route(batch.part)
        batch.plan, batch.now_ms = self._finish(made, known, batch.now_ms, until_available, route)
        self._announce(batch, until_available)

    def _plan_again(self, batch: _Batch, work: Iterable[Work], known: Known, until_available: UntilAvailable) -> None:
        made = self._plan(work, known, batch.now_ms, self._route(batch.part))
        self._complete(batch, made, known, until_available)

    def _announce(self, batch: _Batch, until_available: UntilAvailable) -> None:
        """Send dead letters to the dead topic before they are stored: a crash can repeat them, but never lose them.

        The batch also gets a new token, because its plan may be a new one.
        """
        news = [one for one in batch.plan.dead if one.member not in batch.announced]
        if news:
            until_available(lambda: self._send_dead(news))
            batch.announced.update(one.member for one in news)
        batch.token = new_token()

    def _make_way(self, batch: _Batch, until_available: UntilAvailable) -> list[Work]:
        """Handle ids that the store already has: mark known failures, and give other messages another id.

        Returns all records of the batch, to plan them again.
        """
        entries = [one.decided() if isinstance(one, Prepared) else one for one in batch.plan.decided]
        fresh = [one for one in entries if not one.duplicate]
        members = [one.member for one in fresh]
        route = (batch.position.route or batch.part.source) if self._connection.by_source else None
        stored = until_available(lambda: self._store.get(members, route=route))
        renamed = []
        for one, found in zip(fresh, stored, strict=True):
            if found is not None and make_way(one, found, self._rules):
                renamed.append(one)
        self._open_renamed(renamed, until_available)
        return [*entries]

    # -- storing

    def _stored(self, batch: _Batch, until_available: UntilAvailable) -> Stored | StalePosition:
        """The store's final answer about a batch. A refused batch is planned and sent again."""

        def accept() -> Stored | StalePosition | StaleCount | TakenId:
            made, answer, batch.answer = batch.plan, batch.answer, None  # used once; a repeat sends the batch again
            try:
                if answer is not None:
                    return answer()
                return self._intake.accept(
                    batch.position, made.items, made.dead_letters, counts=made.counts, token=batch.token
                )
            except (StaleCount, TakenId) as refusal:
                return refusal
            except StalePosition as stale:
                # If the store's position is this batch's end, the store has the batch: an earlier reply was lost, the
                # call was repeated, and the store no longer remembers the call's token.
                mine = stale.position == batch.part.next
                return Stored([Outcome.STORED] * len(made.items), 0) if mine else stale

        while not isinstance(stored := until_available(accept), Stored | StalePosition):
            if isinstance(stored, StaleCount):
                self._plan_again(batch, records_of(batch.plan.entries), Known(ask=True), until_available)
            else:
                self._plan_again(batch, self._make_way(batch, until_available), Known(), until_available)
        if isinstance(stored, Stored):
            self._time.heard(stored.now_us // 1_000)
            note_others([one for one in batch.plan.fresh if one.dead is None and one.item is not None], stored)
        return stored

    def _store_elsewhere(self, batch: _Batch, until_available: UntilAvailable) -> bool:
        """Take messages whose ordering keys belong to other shards out of the batch, and store them there.

        Returns whether there were any.
        """
        shards = self._store.shards
        here = shard_of(batch.part.source, shards)
        away: dict[int, list[IntakeRecord | Decided]] = {}
        rest: list[IntakeRecord | Entry] = []
        for one in batch.plan.entries:
            key_lock = None if isinstance(one, Prepared) else one.state.key_lock
            shard = here if key_lock is None else shard_of(route_of(key_lock), shards)
            if shard == here or isinstance(one, Prepared):
                rest.append(one)
            else:
                away.setdefault(shard, []).append(one)
        for shard, entries in away.items():
            batch.elsewhere += self._store_in(shard, batch, entries, until_available)
        batch.plan.entries[:] = rest
        return bool(away)

    def _store_in(
        self, shard: int, batch: _Batch, entries: Sequence[IntakeRecord | Decided], until_available: UntilAvailable
    ) -> list[Decided]:
        """Store records of a batch in the shard of their ordering keys, with the position after the batch.

        Returns all these records as decided ones, also those that the shard already had.
        """
        part, place = batch.part, (batch.part.source, shard)
        work: list[IntakeRecord | Decided] = [*entries]
        while True:
            known = self._positions.get(place)
            if known is not None and known > (part.expected or 0):  # read again: this shard has stored some of it
                work = [_known_before(one, known) for one in work]
            left = [one for one in work if not one.duplicate]
            if not left:
                return [one for one in work if isinstance(one, Decided)]
            position = Position(part.source, known, part.next, route_of(left[0].state.key_lock or ""))
            ahead = _Batch(batch.reader, part, position, batch.now_ms, batch.plan)
            self._plan_again(ahead, work, Known(), until_available)
            stored = self._stored(ahead, until_available)
            if isinstance(stored, Stored):
                self._positions[place] = part.next
                self._note(ahead, until_available)
                return [one for one in ahead.plan.decided if isinstance(one, Decided)]
            if known is not None and (stored.position or 0) < known:
                logger.warning(
                    "intake.shard_fell_back: shard %d knows of %s up to %s, not %s: what it had stored since is lost",
                    *(shard, part.source, stored.position, known),
                )
            self._positions[place] = stored.position
            # another member may have raised the counts with the same records: plan them again from the start
            work = [self._rules.read(one.delivery) for one in entries]

    def _send_dead(self, dead: Sequence[Decided]) -> None:
        """Publish dead letters to the group's dead topic.

        Raises:
            BrokerUnavailable: the topic may have some of them. Repeat the call.
        """
        topic, broker = self._dead_topic, self._connection.broker
        refused = self._refused(
            [(one.delivery.message, return_to_origin(one.message.to(topic))) for one in dead if one.message is not None]
        )
        if refused:
            broker.create_topic(topic)
        for smaller in SMALLER:
            refused = self._refused([(record, smaller(letter, record)) for record, letter in refused])
        for _ in refused:
            logger.error("intake.dead_topic_refused: the dead topic does not take a letter; the store has it")

    def _refused(self, pairs: Sequence[tuple[Message, Message]]) -> list[tuple[Message, Message]]:
        """Publish the second message of each pair. Returns the pairs that the broker refuses for good.

        Raises:
            BrokerUnavailable: the topic may have some of them. Repeat the call.
        """
        refused = []
        answers = self._connection.broker.publish([message for _, message in pairs]) if pairs else []
        for pair, failure in zip(pairs, answers, strict=True):
            if failure is not None and failure.transient:
                raise BrokerUnavailable(f"{failure.reason}: dead letters did not reach the dead topic; repeat it")
            if failure is not None:
                logger.warning("intake.dead_topic: %s", failure.reason)
                refused.append(pair)
        return refused


def _known_before(one: IntakeRecord | Decided, position: int) -> IntakeRecord | Decided:
    """The record, marked as known if the shard has already taken it in: its offset is below the shard's `position`."""
    decided = one if isinstance(one, Decided) else Decided(one, one.state)
    if decided.offset >= position:
        return one
    decided.mark_known()
    return decided

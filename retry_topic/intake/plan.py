"""The plan: decides what to store, refuse and report of a batch of failed messages. Pure, without I/O.

    records + the store's answers + now + rules ─► plan ─► items, dead letters and counts for the caller to store

The caller is a `Transport`: the intake from a queue or the intake from a log.

For each record the plan takes the greater of the header's attempt count and the store's own count, so that no header
lowers a count. It asks the policy, and writes the message with its next attempt time, or as a dead letter.

A plan that lacks an answer has `questions` and nothing to store. The caller finds the answers, and calls `plan` again
with the `entries` of that plan. Records that are already decided do not change.

An attempt is counted once. When two copies of one delivery fail, the second failure is known: nothing is stored
(`is_copy`). The same holds for a message that has succeeded; consumers report successes to the store.

Two records with one id are the same failure only when their payload, key and other headers are equal. Any other record
with a taken id (copied headers, a forger) gets its own id: no record is dropped because of its headers.

Records from a log go through the decision cache first (`templates`). It decides and writes most of them, exactly as
this module would.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from retry_topic.brokers.protocol import Delivery
from retry_topic.intake.records import (
    DAY_MS,
    Decided,
    IntakeRecord,
    Known,
    Rules,
    dead_letter,
    is_same,
)
from retry_topic.intake.templates import Prepared, Templates
from retry_topic.message import Message
from retry_topic.message.headers import MAX_COUNT, RetryState, attempts_key, replays_key
from retry_topic.policy import DeadDecision, decide, failure_from
from wheel_sched.store import ENDED, BatchCount, Found, Item

Entry = Decided | Prepared
Work = Delivery | IntakeRecord | Decided | Prepared


@dataclass(slots=True)
class Questions:
    """The questions that must be answered before a plan can decide.

    Args:
        keys: the names of the counts to read from the store, such as a message's attempts.
        ids: the ids of items to read from the store.
        topics: possible origins of messages; the broker says whether the group reads them.
    """

    keys: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    topics: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.keys or self.ids or self.topics)


@dataclass(frozen=True, slots=True)
class Plan:
    """The decisions about a batch.

    Args:
        questions: open questions. If there are any, all fields below `copies` are empty.
        entries: the batch in order: decided records, and records that wait for an answer.
        odd: records with faults in their headers (`RetryState.oddities`), of those that were read for this plan.
        copies: records whose failure is already counted, or whose message has already ended.
        renamed: records that got another id than the one they came with.
        fresh: entries with something to store.
        items: the items of messages that will be retried.
        dead: entries that are dead letters.
        dead_letters: for each of `dead` the item that the store keeps, and the reason.
        counts: the attempt counts of `fresh`, for a log batch.
    """

    questions: Questions
    entries: list[IntakeRecord | Decided | Prepared]
    odd: list[IntakeRecord] = field(default_factory=list)
    copies: list[Decided] = field(default_factory=list)
    renamed: list[Decided] = field(default_factory=list)
    fresh: list[Entry] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)
    dead: list[Decided] = field(default_factory=list)
    dead_letters: list[tuple[Item, str]] = field(default_factory=list)
    counts: list[BatchCount] = field(default_factory=list)

    @property
    def decided(self) -> list[Entry]:
        """The entries that are decided, without records that still need an answer of store or broker."""
        return [one for one in self.entries if not isinstance(one, IntakeRecord)]


def plan(
    work: Iterable[Work],
    known: Known,
    now_ms: int,
    rules: Rules,
    *,
    templates: Templates | None = None,
    route: str | None = None,
) -> Plan:
    """Decide about a batch.

    Args:
        work: deliveries, records, and entries of an earlier plan.
        known: the store's answers.
        now_ms: the store's time.
        rules: the intake's rules.
        templates: the decision cache, for deliveries. Defaults to none.
        route: the key that chooses the shard of items without an ordering key. Defaults to None: their own key or id.
    """
    questions = Questions()
    entries: list[IntakeRecord | Decided | Prepared] = []
    odd: list[IntakeRecord] = []
    copies: list[Decided] = []
    numbers: dict[str, int] = {}  # for each id that several records have: the last attempt number given
    for one in work:
        if isinstance(one, Delivery):
            prepared = None if templates is None else templates.prepare(one, now_ms)
            if prepared is not None:
                entries.append(prepared)
                continue
            record = rules.read(one)
            if record.state.oddities:
                odd.append(record)
        elif isinstance(one, IntakeRecord):
            record = one
        else:
            entries.append(one)
            continue
        decided = _count(record, known, numbers, rules, questions)
        if decided is not None and decided.duplicate:
            copies.append(decided)
        elif decided is not None and not _decide(decided, known, now_ms, rules, questions):
            decided = None
        entries.append(record if decided is None else decided)
        if templates is not None and decided is not None and isinstance(one, Delivery):
            templates.learn(decided)
    if questions:
        return Plan(questions, entries, odd, copies)
    fresh, renamed = _distinct(entries, known, rules, questions)
    if questions:  # `_distinct` may have added questions
        return Plan(questions, entries, odd, copies)
    dead = [one for one in fresh if one.dead is not None and isinstance(one, Decided)]
    if route is not None:
        for one in fresh:
            if one.item is not None and one.key_lock is None:
                one.item.route = route
    return Plan(
        questions,
        entries,
        odd,
        copies,
        renamed,
        fresh,
        [one.item for one in fresh if one.dead is None and one.item is not None],
        dead,
        [dead_letter(one, now_ms) for one in dead],
        [count for one in fresh for count in one.counts()] if rules.from_log else [],
    )


def _count(
    record: IntakeRecord, known: Known, numbers: dict[str, int], rules: Rules, questions: Questions
) -> Decided | None:
    """Find the number of a record's failed attempt: the greater of the header's count and the store's count.

    Marks the record if its failure is already known. Returns None if the store must be asked first.
    """
    message, given = record.delivery.message, record.state
    of_replays = replays_key(given.known_as)
    replays = known.counts.get(of_replays)
    if replays is None:
        if known.ask:
            questions.keys += (of_replays, attempts_key(given, message))
            if not rules.from_log:
                questions.keys.append(record.record_key)
            return None
        state = _with_replays(given, given.replays)
        return Decided(record, state)
    state = _with_replays(given, replays)
    key = attempts_key(state, message)
    count = known.counts.get(key)
    if count is None:
        questions.keys.append(key)
        return None
    one = Decided(record, state)
    taken_in = not rules.from_log and known.counts[record.record_key] > 0
    if state.unsigned and not taken_in and count != ENDED:
        one.state = _next_number(state, key, count, numbers)
    elif not taken_in and is_copy(given, replays, count):
        one.ended = count == ENDED
        one.mark_known()
    elif taken_in or count >= state.attempt:
        return _count_again(one, count, taken_in, known, questions)
    return one


def _with_replays(state: RetryState, replays: int) -> RetryState:
    """The state with this replay count. Its attempt is at least 1, because the message has failed."""
    attempt = max(1, state.attempt)
    if (state.attempt, state.replays) == (attempt, replays):
        return state
    return replace(state, attempt=attempt, replays=replays)


def _next_number(state: RetryState, key: str, count: int, shared: dict[str, int]) -> RetryState:
    """The state with the next attempt number: one above the store's count, and above the numbers of earlier records
    with the same id."""
    shared[key] = max(count, shared.get(key, 0)) + 1
    return replace(state, attempt=min(shared[key], MAX_COUNT))


def is_copy(state: RetryState, replays: int, count: int) -> bool:
    """Whether a second copy of a delivery has failed: the store has counted its attempt, or the message has ended.

    Some consumers forward a failed message without raising its attempt number. Consumers that raise it also write a
    header: when the attempt started, or that the message is dead. Without such a header the number is not used.

    Args:
        state: the state in the headers.
        replays: the message's replay count in the store.
        count: the message's attempt count in the store.
    """
    if count == ENDED:
        return True
    if state.unsigned:
        return False
    counting = (state.started_ms is not None or state.verdict == "dead") and state.attempt > 0
    return counting and (state.replays < replays or (state.replays == replays and count >= state.attempt))


def _count_again(one: Decided, count: int, taken_in: bool, known: Known, questions: Questions) -> Decided | None:
    """Decide if a record whose attempt is already counted is a repeat or another attempt.

    Returns None if the store must be asked first.
    """
    claimed = one.state.attempt
    one.state = replace(one.state, attempt=max(count, claimed))
    if one.member not in known.items:
        questions.ids.append(one.member)
        return None
    found = known.items[one.member]
    here = one.is_in(found)
    if here and found is not None and found.state == "dead" and one.record.repeated:
        return one  # a queue repeats a record after a crash between storing a dead letter and publishing it
    if here or taken_in:
        one.duplicate = True
    elif not (one.record.repeated and claimed == one.state.attempt):
        one.state = replace(one.state, attempt=min(one.state.attempt + 1, MAX_COUNT))
    return one


def _decide(one: Decided, known: Known, now_ms: int, rules: Rules, questions: Questions) -> bool:
    """Decide by policy and write the item. Returns False when the store or the broker must be asked first."""
    record = one.record
    origins = rules.origins if rules.returns_to_origin(one) else None
    if origins is not None and record.topic not in origins and record.topic not in known.origins:
        questions.topics.append(record.topic)
        return False
    decision = decide(rules.policy_of(one), failure_from(one.state, now_ms=now_ms), now_ms, rules.rng)
    one.decision, one.now_ms = decision, now_ms
    if isinstance(decision, DeadDecision):
        one.dead = decision.reason
    elif origins is not None and record.topic not in origins:
        one.dead = "unknown-origin"
    else:
        one.due_ms = decision.due_ms
    # the time starts at the due time: the store must not forget the count during a long delay
    one.keep_until_ms = (one.due_ms or now_ms) + (decision.why.max_age_ms or 7 * DAY_MS)
    rules.write(one)
    of_replays = replays_key(record.state.known_as)
    if (one.dead is not None or one.state.unsigned) and of_replays not in known.counts:
        # Read the store's counts first: headers alone must not make a message dead, and for unsigned records only the
        # store counts attempts.
        questions.keys += (of_replays, attempts_key(record.state, record.delivery.message))
        return False
    return True


def _distinct(
    entries: list[IntakeRecord | Decided | Prepared], known: Known, rules: Rules, questions: Questions
) -> tuple[list[Entry], list[Decided]]:
    """The entries to store, each failure once; and those that got a new id, because another message had their id."""
    fresh = [one for one in entries if not isinstance(one, IntakeRecord) and not one.duplicate]
    members = Counter([one.member for one in fresh])
    if len(members) == len(fresh):
        return fresh, []  # the usual case: no two entries share an id
    entries[:] = [one.decided() if isinstance(one, Prepared) else one for one in entries]
    for at, one in enumerate(entries):  # if records share an id, the store's counts first show which are known
        if isinstance(one, Decided) and not one.duplicate and members[one.member] > 1:
            state = one.record.state
            if replays_key(state.known_as) not in known.counts:
                questions.keys += (replays_key(state.known_as), attempts_key(state, one.delivery.message))
                entries[at] = one.record
    if questions:
        return [], []
    seen: dict[str, Message] = {}
    kept: list[Entry] = []
    renamed = []
    for one in entries:
        if not isinstance(one, Decided) or one.duplicate:
            continue
        message = one.delivery.message
        if one.member in seen and is_same(seen[one.member], message):
            one.mark_known()
            continue
        while one.member in seen:
            give_another_id(one, rules)
        if one.state.id_base != one.head:
            renamed.append(one)
        seen[one.member] = message
        kept.append(one)
    return kept, renamed


def make_way(one: Decided, found: Found | None, rules: Rules) -> bool:
    """Decide about a record whose id the store already has. Returns True if it got another id and must be stored again.

    Args:
        one: the record.
        found: the store's item with this id, if it still exists.
        rules: the intake's rules.
    """
    known_dead = one.dead is not None and found is not None and found.state == "dead" and not found.body
    here = one.is_in(found) and (one.record.repeated or not one.state.unsigned)  # many unsigned records can be equal
    # no other record has an id that comes from its place, or that contains the time at which it was published
    unique = one.state.id == one.record.own_id or (one.state.published_ms is not None and not one.state.unsigned)
    own = unique and (found is None or one.is_in(found))
    if known_dead or here or own or (found is None and one.record.repeated):
        if one.dead is None or rules.from_log:
            one.mark_known()  # not so a queue's dead letter, which is sent to the dead topic again
        return False
    give_another_id(one, rules)
    return True


def give_another_id(one: Decided, rules: Rules) -> None:
    """Give the record an id made of its place in the retry topic. If that is its id already, give it a random id.

    The id made of the place can be another message's, because a forger can compute it.
    """
    own_id = one.record.own_id
    if one.state.id == own_id:
        one.state = replace(one.state, id=uuid.uuid4().hex, published_ms=None)
    else:
        one.state = replace(one.state, id=own_id, replays=0, published_ms=None)
    one.record = replace(one.record, state=one.state)
    rules.write(one)


def records_of(entries: Sequence[IntakeRecord | Decided | Prepared]) -> list[Work]:
    """The records of the entries, to decide them again. Entries whose failure is already known are returned
    unchanged."""
    return [one if isinstance(one, IntakeRecord) or one.duplicate else one.record for one in entries]

"""Dead letters: select them, group them by error fingerprint, replay them, delete them.

A replay restarts the message's attempts and raises its replay count. The `LoopGuard` bounds that count. A replay can be
a dry run. A rate can spread it over time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from retry_topic.connection import Connection
from retry_topic.message import Message
from retry_topic.message.encoding import decode_body, encode_body
from retry_topic.message.headers import RetryState, read, replays_key, sign, write
from wheel_sched.errors import ConfigError, Rejected
from wheel_sched.store import AttemptCounts, DelayStore, Found, Item, Outcome

MAX_REPLAYS = 3  # of one message; then the loop guard holds it back
_COUNTED_FOR_MS = 90 * 86_400_000  # as long as dead letters are kept by default
_PAGE = 500


@dataclass(frozen=True, slots=True)
class DeadLetterInfo:
    """One dead letter, as it was read.

    Args:
        id: its id in the store.
        topic: the topic on which it first failed.
        died_ms: when it became a dead letter.
        reason: why it did, in words.
        state: its retry headers; empty when it cannot be read.
        message: the message that a replay would send; None when it cannot be read.
        route: the key that chose its shard. Defaults to its id.
    """

    id: str
    topic: str
    died_ms: int
    reason: str
    state: RetryState
    message: Message | None
    route: str | None = None


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """Chooses dead letters. All conditions must hold. Defaults to all letters.

    Args:
        topic: the topic on which it first failed.
        error: a glob for the error class, its message or the reason.
        fingerprint: the fingerprint of the error.
        since_ms: died at or after.
        until_ms: died before.
        key: the message's key.
        ids: exactly these.
    """

    topic: str | None = None
    error: str | None = None
    fingerprint: str | None = None
    since_ms: int = 0
    until_ms: int | None = None
    key: bytes | None = None
    ids: frozenset[str] | None = None

    def matches(self, letter: DeadLetterInfo) -> bool:
        state = letter.state
        texts = (state.error_class or "", state.error_message or "", letter.reason)
        return (
            self.since_ms <= letter.died_ms
            and (self.until_ms is None or letter.died_ms < self.until_ms)
            and (self.topic is None or letter.topic == self.topic)
            and (self.error is None or any(fnmatchcase(text, self.error) for text in texts))
            and (self.fingerprint is None or state.error_fingerprint == self.fingerprint)
            and (self.key is None or (letter.message is not None and letter.message.key == self.key))
            and (self.ids is None or letter.id in self.ids)
        )


@dataclass(frozen=True, slots=True)
class Order:
    """One dead letter to replay, not chosen by a `DeadLetterFilter` but for example by a report.

    Args:
        id: the id of the letter.
        due_ms: when it is sent. Defaults to now.
        value: its new payload. Defaults to the payload it has.
    """

    id: str
    due_ms: int | None = None
    value: bytes | None = None


@dataclass(slots=True)
class Group:
    """Dead letters of one topic with one error fingerprint."""

    topic: str
    fingerprint: str
    count: int
    first_ms: int
    last_ms: int
    sample: DeadLetterInfo


@dataclass(slots=True)
class Replayed:
    """The result of a replay, or of a dry run as if it had replayed.

    Args:
        matched: how many letters were selected.
        replayed: how many letters wait again.
        guarded: how many letters the loop guard held back.
        unreadable: how many letters cannot be read.
        last_due_ms: when the last replayed letter is due.
        samples: the first five letters.
    """

    matched: int = 0
    replayed: int = 0
    guarded: int = 0
    unreadable: int = 0
    last_due_ms: int | None = None
    samples: list[DeadLetterInfo] = field(default_factory=list)


class DeadLetters:
    """The dead letters of a store. Any thread.

    Args:
        connection: the connection, see `connect`.
        secrets: give them if the service signs headers. The first one signs replayed messages. Defaults to none.
    """

    def __init__(self, connection: Connection, *, secrets: Sequence[bytes] = ()) -> None:
        self._connection = connection
        self._secrets = secrets

    def select(self, selection: DeadLetterFilter | None = None) -> Iterator[DeadLetterInfo]:
        """Dead letters in order of death, page by page."""
        selection = selection or DeadLetterFilter()
        if selection.ids is not None:
            for found in self._connection.store.get(sorted(selection.ids), anywhere=True):
                if found is not None and found.state == "dead":
                    letter = read_dead(found)
                    if selection.matches(letter):
                        yield letter
            return
        cursor, first = None, True
        bounds: dict[str, Any] = {"least_ms": selection.since_ms, "topic": selection.topic}
        if selection.until_ms is not None:
            bounds["greatest_ms"] = selection.until_ms - 1
        while first or cursor is not None:
            page = self._connection.store.list_items("dead", cursor=cursor, limit=_PAGE, **bounds)
            yield from filter(selection.matches, map(read_dead, page.found))
            cursor, first = page.cursor, False

    def groups(self, selection: DeadLetterFilter | None = None) -> list[Group]:
        """Dead letters by topic and fingerprint, the largest group first."""
        groups: dict[tuple[str, str], Group] = {}
        for letter in self.select(selection):
            key = letter.topic, letter.state.error_fingerprint or letter.reason.partition(":")[0]
            group = groups.get(key)
            if group is None:
                groups[key] = Group(*key, 1, letter.died_ms, letter.died_ms, letter)
            else:
                group.count += 1
                group.last_ms = letter.died_ms
        return sorted(groups.values(), key=lambda group: -group.count)

    def replay(
        self,
        selection: DeadLetterFilter | None = None,
        *,
        dry_run: bool = False,
        rate: float | None = None,
        limit: int | None = None,
        target: str | None = None,
        edit: Callable[[Message], Message] | None = None,
        max_replays: int = MAX_REPLAYS,
        progress: Callable[[int], None] | None = None,
    ) -> Replayed:
        """Store dead letters as waiting messages again. They become due from now on, `rate` per second.

        Args:
            selection: which letters. Defaults to all.
            dry_run: change nothing; count, and give five samples. Defaults to False.
            rate: messages per second. Defaults to None: all at once.
            limit: at most this many. Defaults to all.
            target: send to this topic instead, which then counts as the topic on which they first failed. Defaults to
                the topic to which their next attempt would have gone.
            edit: changes each message before it is sent: payload, key, headers. Defaults to no change.
            max_replays: the loop guard's bound. Defaults to 3.
            progress: called with the number of letters handled so far.

        Raises:
            ConfigError: an argument is wrong. Nothing was replayed.
            UnknownTopic: the topic `target` is absent. Nothing was replayed.
            Rejected: `edit` made a message that cannot be sent. Its batch was not replayed.
        """
        problems = []
        if rate is not None and not 0 < rate <= 1e6:
            problems.append(f"expected rate to be messages per second, above 0, got: {rate!r}")
        if limit is not None and limit < 1:
            problems.append(f"expected limit to be at least 1, got: {limit!r}")
        if max_replays < 1:
            problems.append(f"expected max_replays to be at least 1, got: {max_replays!r}")
        if problems:
            raise ConfigError(problems)
        if target is not None:
            (self._connection.check_topic if dry_run else self._connection.prepare_topic)(target)
        run = _Run(self._connection, self._secrets, max_replays, dry_run, target)

        def again(letter: DeadLetterInfo, message: Message, place: int) -> tuple[int, Message]:
            due_ms = run.now_ms + (int(place * 1000 / rate) if rate else 0)
            return due_ms, message if edit is None else edit(message)

        selection = selection or DeadLetterFilter()
        if selection.until_ms is None:  # a letter that dies again during the replay is not selected twice
            selection = replace(selection, until_ms=run.now_ms + 1)
        letters = itertools.islice(self.select(selection), limit)
        while batch := [*itertools.islice(letters, _PAGE)]:
            run.replay(batch, again)
            if progress is not None:
                progress(run.result.matched)
        return run.result

    def replay_orders(
        self, orders: Sequence[Order], *, dry_run: bool = False, max_replays: int = MAX_REPLAYS
    ) -> Replayed:
        """Store exactly these letters as waiting messages again, each with its due time.

        Letters that are no longer dead are skipped. So a second run of the same orders does nothing.

        Args:
            orders: the letters, and when each is sent.
            dry_run: change nothing; count, and give five samples. Defaults to False.
            max_replays: the loop guard's bound. Defaults to 3.

        Raises:
            Rejected: a new payload cannot be sent. Its batch was not replayed.
        """
        run = _Run(self._connection, self._secrets, max_replays, dry_run)
        wanted = {order.id: order for order in orders}

        def again(letter: DeadLetterInfo, message: Message, place: int) -> tuple[int, Message]:
            order = wanted[letter.id]
            message = message if order.value is None else replace(message, value=order.value)
            return run.now_ms if order.due_ms is None else order.due_ms, message

        ids = sorted(wanted)
        for at in range(0, len(ids), _PAGE):
            run.replay([*self.select(DeadLetterFilter(ids=frozenset(ids[at : at + _PAGE])))], again)
        return run.result

    def delete(
        self, selection: DeadLetterFilter | None = None, *, dry_run: bool = False, limit: int | None = None
    ) -> int:
        """Delete dead letters for good. Answers the number of deleted letters."""
        letters = [*itertools.islice(self.select(selection), limit)]
        if dry_run:
            return len(letters)
        by_route: dict[str | None, list[str]] = {}
        for letter in letters:
            by_route.setdefault(letter.route, []).append(letter.id)
        deleted = 0
        for route, ids in by_route.items():
            for at in range(0, len(ids), _PAGE):
                deleted += self._connection.store.delete_dead(ids[at : at + _PAGE], route=route).count(Outcome.DONE)
        return deleted


class LoopGuard:
    """Counts the replays of each message, so that a poisoned message cannot circle for ever.

    The delay store holds the count, beside the attempt count. Headers repeat it but decide nothing, because every
    client that can write to a topic can write headers. Each call is one round trip. Any thread.

    Args:
        store: the store into which the group's service takes failed messages.
    """

    def __init__(self, store: DelayStore) -> None:
        self._counts = AttemptCounts(store)

    def counts(self, names: Sequence[str]) -> list[int]:
        """The replay counts of these messages, each named as the store knows it (`RetryState.known_as`).

        Raises:
            StoreError: the store does not answer.
        """
        return self._counts.raise_to([(replays_key(name), 0, 0) for name in names])

    def count(self, replays: Sequence[tuple[str, int]], now_ms: int) -> None:
        """Set the replay counts of messages. A count is never lowered, so the call may be repeated.

        Raises:
            StoreError: the store does not answer; some messages may be counted.
        """
        self._counts.raise_to([(replays_key(name), times, now_ms + _COUNTED_FOR_MS) for name, times in replays])


class _Run:
    """One run of a replay: it stores batches of letters, and adds up the result."""

    def __init__(
        self,
        connection: Connection,
        secrets: Sequence[bytes],
        max_replays: int,
        dry_run: bool,
        target: str | None = None,
    ) -> None:
        self._store, self._secrets, self._target = connection.store, secrets, target
        self._max_replays, self._dry_run = max_replays, dry_run
        self.now_ms = connection.store.now_ms()
        self.result = Replayed()

    def replay(
        self,
        letters: list[DeadLetterInfo],
        again: Callable[[DeadLetterInfo, Message, int], tuple[int, Message]],
    ) -> None:
        """Store a batch of letters as waiting messages. The loop guard counts each replay before the message waits.

        A crash in between costs a message one replay. It never lets the message exceed its limit.

        Args:
            letters: the batch.
            again: answers the due time and the message of a letter, from its place among all replayed letters.
        """
        result, guard = self.result, LoopGuard(self._store)
        result.matched += len(letters)
        result.samples += letters[: 5 - len(result.samples)]
        moves: list[tuple[str, int, Item | None]] = []
        counts: list[tuple[str, int]] = []
        names = [letter.id if letter.state.id is None else letter.state.known_as for letter in letters]
        for letter, name, replays in zip(letters, names, guard.counts(names), strict=True):
            if letter.message is None:
                result.unreadable += 1
                continue
            if replays >= self._max_replays:
                result.guarded += 1
                continue
            due_ms, message = again(letter, letter.message, result.replayed + len(moves))
            moves.append((letter.id, due_ms, self._item(letter, letter.message.topic, message, replays + 1)))
            counts.append((name, replays + 1))
            result.last_due_ms = max(due_ms, result.last_due_ms or 0)
        if self._dry_run:
            result.replayed += len(moves)
        elif moves:
            guard.count(counts, self.now_ms)
            result.replayed += self._store.requeue(moves).count(Outcome.DONE)

    def _item(self, letter: DeadLetterInfo, topic: str, message: Message, replays: int) -> Item:
        if not isinstance(message, Message):
            raise Rejected(f"expected edit to return a Message, got: {message!r:.200}; {letter.id} stays dead")
        state = replayed_state(letter.state, replays)
        if self._target is not None and self._target != topic:
            topic = self._target
            state = replace(state, original_topic=topic)  # else its new consumer would treat it as a stray copy
        if self._secrets and state.id is not None:
            state = sign(state, message, self._secrets[0])
        message = message.to(topic, write(message.headers, state))
        return Item(letter.id, None, encode_body(message), letter.topic, route=letter.route)


def replayed_state(state: RetryState, replays: int) -> RetryState:
    """The state of a dead letter that is replayed for the `replays`th time: its attempts start again from 0."""
    return replace(
        state,
        attempt=0,
        replays=replays,
        first_failed_ms=None,
        due_ms=None,
        delay_ms=None,
        verdict=None,
        retry_after_ms=None,
        signature=None,
        oddities=(),
    )


def read_dead(found: Found) -> DeadLetterInfo:
    """The dead letter in an item. A letter that cannot be read keeps its reason."""
    try:
        message: Message | None = decode_body(found.body)
    except Rejected:
        message = None
    state = read(message.headers) if message is not None else RetryState()
    topic = state.original_topic or found.topic
    return DeadLetterInfo(found.id, topic, found.score_ms, found.reason, state, message, found.route)

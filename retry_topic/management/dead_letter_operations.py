"""Replay and deletion of dead letters as durable operations.

An operation is for the letters of one group, or for those that a search chooses. It changes only letters that died
before the operation was made. So an operation does not replay a letter twice, even if the letter dies again.

If a group has few letters, they are found by their fingerprint. Otherwise the letters of the topic, or of all
topics, are read in order of death, at most 20,000 in each step.

Each batch keeps the id and the version of its letters. A letter is changed only if it still has this version. So if
somebody else has replayed or deleted a letter meanwhile, the operation leaves it, and counts it by what happened to it.
A letter that was replayed and has died again under the same id has another version.

A process may die during an operation. If another process continues the operation within a minute, the counts are exact.
After a longer time, the store has forgotten what it did with the batch that was begun. A replay then asks
the loop guard: each letter of the batch whose replay it has counted counts as replayed. A deletion counts each letter
that is no longer in the store as deleted. Such a count is wrong only if somebody else changed the letter at that time.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from retry_topic.connection import Connection
from retry_topic.dead_letters import DeadLetterInfo
from retry_topic.dead_letters.dead_topic import check_secrets
from retry_topic.dead_letters.loop_guard import MAX_REPLAYS, MOST_REPLAYS, count_replays, replay_counts
from retry_topic.dead_letters.replay import LetterReplay
from retry_topic.dead_letters.selection import read_dead
from retry_topic.management.changing import outcome_words
from retry_topic.management.filters import entry_of
from retry_topic.management.inbox.groups import group_of
from retry_topic.management.listing import error_of
from retry_topic.management.search import parse_search
from retry_topic.message.headers import replays_key
from wheel_sched.errors import NotDone, Rejected
from wheel_sched.management.operations import CountedStep, OperationBatch, PerformedBatch, PlannedBatch
from wheel_sched.management.wording import one_line
from wheel_sched.store import DelayStore, Found, Outcome
from wheel_sched.store.core.call import Call, Plan
from wheel_sched.store.core.change import Alteration, Change
from wheel_sched.store.core.items import MAX_ID_BYTES, encode_text
from wheel_sched.store.core.listing import read_cursor
from wheel_sched.store.core.plans import shard_of

REPLAY = "replay-dead-letters"
DELETE = "delete-dead-letters"
UNREADABLE = "cannot be read"
UNNAMED = "with an id too long for counting replays"
GUARDED = "replayed too often before"

_SAMPLES = 5
_BY_ID = "id:"  # a cursor begins so if the letters are found by a ref
_FEW, _MANY = 5_000, 20_000  # the most ids that one call looks up: at the first step, and later
_PAGE = 500  # one step of counting finds at most so many letters, and reads up to 40 times as many
_NO_VERSION = -1  # a version that no letter has
_LEAST_PAGE = 50  # smaller pages would make a search slow if few letters match


@dataclass(frozen=True, slots=True)
class ChosenLetters:
    """Which dead letters an operation is for.

    Args:
        topic: only letters of this topic; None: any.
        matches: whether a dead letter is one of them.
        since_ms: only letters that died at this time, epoch ms, or later. Defaults to 0.
        until_ms: only letters that died before this time, epoch ms. Defaults to None: any.
        ref: a ref by which all the letters may be found. Defaults to "": there is none.
    """

    topic: str | None
    matches: Callable[[Found], bool]
    since_ms: int = 0
    until_ms: int | None = None
    ref: str = ""


def chosen_letters(arguments: Mapping[str, str], now_ms: int) -> ChosenLetters:
    """The letters that the arguments of an operation choose: `topic` and `group`, or `search`.

    Args:
        arguments: the arguments of the operation.
        now_ms: the time from which durations in the search count, epoch ms.

    Raises:
        Rejected: the arguments name no letters, or the search cannot be read; nothing was changed.
    """
    if "search" in arguments:
        chosen = parse_search(arguments["search"]).filter(now_ms)
        if not chosen.only_dead:
            raise Rejected("only dead letters can be replayed or deleted here: nothing was changed; remove state:")
        return ChosenLetters(
            chosen.topic, lambda found: chosen.matches(entry_of(found)), chosen.since_ms or 0, chosen.until_ms
        )
    if "group" not in arguments:
        raise Rejected("which dead letters? Give topic and group, or search; nothing was changed")
    topic, group = arguments.get("topic", ""), arguments["group"]
    return ChosenLetters(topic, lambda found: found.topic == topic and group_of(found) == group, ref=f"fp:{group}")


class _LetterKind:
    """What replay and deletion share: counting and choosing letters."""

    name = ""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._store: DelayStore = connection.store

    def count(self, arguments: Mapping[str, str], until_ms: int, cursor: str | None) -> CountedStep:
        """Count the next letters after the cursor, and check samples of them."""
        found, after = self._page(arguments, until_ms, cursor, _PAGE)
        letters = [read_dead(one) for one in found[:_SAMPLES]]
        self.check(letters)
        samples = tuple(f"{letter.id} {one_line(error_of(letter), 200)}" for letter in letters)
        return CountedStep(len(found), after, samples)

    def check(self, letters: Sequence[DeadLetterInfo]) -> None:
        """Raise an error if the samples show that the operation cannot change its letters."""

    def _page(
        self, arguments: Mapping[str, str], until_ms: int, cursor: str | None, limit: int
    ) -> tuple[list[Found], str | None]:
        """At most `limit` letters after the cursor, and the cursor for the next page."""
        chosen = chosen_letters(arguments, until_ms)
        ids = self._ids(chosen.ref, cursor)
        if ids or (cursor is not None and cursor.startswith(_BY_ID)):  # all letters by id may have left
            rest = ids[bisect_right(ids, cursor.removeprefix(_BY_ID)) if cursor else 0 :]
            items = self._store.get(rest[:limit], anywhere=True) if rest else []
            found = [one for one in items if one is not None and one.state == "dead" and chosen.matches(one)]
            after = f"{_BY_ID}{rest[limit - 1]}" if len(rest) > limit else None
            return [one for one in found if one.score_ms < until_ms], after
        before_ms = until_ms if chosen.until_ms is None else min(until_ms, chosen.until_ms)
        page = self._store.list_items(
            "dead",
            topic=chosen.topic,
            cursor=cursor,
            limit=max(limit, _LEAST_PAGE),
            least_ms=chosen.since_ms,
            greatest_ms=max(before_ms - 1, 0),
            matches=chosen.matches,
        )
        if len(page.found) <= limit:
            return page.found, page.cursor
        behind = dict(read_cursor(cursor, self._store.shards) or {})
        for one in page.found[:limit]:
            behind[str(one.shard)] = (one.id, one.score_ms)
        return page.found[:limit], json.dumps(behind)

    def _ids(self, ref: str, cursor: str | None) -> list[str]:
        """The ids of all items with this ref, sorted. Empty when the letters must be read in order of death.

        Raises:
            NotDone: more letters have died since the first step than one call can look up.
        """
        if not ref or (cursor is not None and not cursor.startswith(_BY_ID)):
            return []
        most = _FEW if cursor is None else _MANY
        try:
            ids = self._store.find(ref, limit=most + 1)
        except Rejected:  # a group named by a reason's code may be no valid ref
            return []
        if len(ids) > most and cursor is not None:
            raise NotDone(f"over {_MANY:,} letters now have this error: the rest is unchanged; start a new operation")
        return sorted(ids) if len(ids) <= most else []

    def _change(self, alterations: Sequence[tuple[str | None, Alteration]], token: str) -> list[Outcome]:
        """Make changes, each with its route. Within a minute, a repeat with the same token gets the first answers."""
        return self._store.run(_changed(self._store.shards, alterations, token))


def _changed(shards: int, alterations: Sequence[tuple[str | None, Alteration]], token: str) -> Plan[list[Outcome]]:
    places: dict[int, list[int]] = {}
    for place, (route, alteration) in enumerate(alterations):
        places.setdefault(shard_of(route or alteration.id, shards), []).append(place)
    calls: list[Call[Any]] = [
        Call(shard, Change([alterations[place][1] for place in chosen], f"{token}-{shard}"))
        for shard, chosen in places.items()
    ]
    outcomes = [Outcome.ABSENT] * len(alterations)
    replies: list[list[Outcome]] = (yield calls) if calls else []
    for chosen, answers in zip(places.values(), replies, strict=True):
        for place, outcome in zip(chosen, answers, strict=True):
            outcomes[place] = outcome
    return outcomes


class ReplayDeadLetters(_LetterKind):
    """Lets dead letters wait again, as `DeadLetters.replay` does.

    The operation's arguments are those of `chosen_letters`, and `max_replays`: how often one message may be replayed.

    Args:
        connection: where the letters are stored.
        secrets: returns the secrets of headers. Defaults to none: headers are not signed.
    """

    name = REPLAY

    def __init__(self, connection: Connection, secrets: Callable[[], Sequence[bytes]] = tuple) -> None:
        super().__init__(connection)
        self._secrets = secrets

    def check(self, letters: Sequence[DeadLetterInfo]) -> None:
        """Raise `ConfigError` if letters are signed and there are no secrets."""
        check_secrets((letter.state for letter in letters), self._secrets())

    def plan(self, arguments: Mapping[str, str], until_ms: int, cursor: str | None, budget: int) -> PlannedBatch:
        """Choose the next letters. An entry of the batch has a letter's id, version, route, root and replay number."""
        found, after = self._page(arguments, until_ms, cursor, budget)
        every = [read_dead(one) for one in found]
        letters = [letter for letter in every if len(encode_text(replays_key(letter.root))) <= MAX_ID_BYTES]
        counts = replay_counts(self._store, [letter.root for letter in letters]) if letters else []
        most = int(arguments.get("max_replays", MAX_REPLAYS))
        left: Counter[str] = Counter({UNNAMED: len(every) - len(letters)})
        entries = []
        for letter, count in zip(letters, counts, strict=True):
            if letter.message is None:
                left[UNREADABLE] += 1
            elif count >= most:
                left[GUARDED] += 1
            else:
                entries.append([letter.id, letter.version, letter.route, letter.root, count + 1])
        return PlannedBatch(tuple(entries), after, dict(+left))

    def perform(
        self, arguments: Mapping[str, str], batch: OperationBatch, token: str, *, remembered: bool
    ) -> PerformedBatch:
        """Replay the letters of a batch. Their due times follow one another at the pace of the operation."""
        found = self._store.get([entry[0] for entry in batch.entries], anywhere=True)
        now_ms, secrets = self._store.now_ms(), self._secrets()
        made = LetterReplay(
            *(self._store, now_ms, lambda *_: now_ms, lambda _, message: message, MOST_REPLAYS, False, None, secrets),
            tracing=self._connection.tracing,
        )
        alterations: list[tuple[str | None, Alteration]] = []
        counted = []
        for place, (entry, item) in enumerate(zip(batch.entries, found, strict=True)):
            item_id, version, route, root, replays = entry
            alteration = Alteration(item_id, "q", now_ms + int(place * batch.every_ms), _NO_VERSION)
            if item is not None and item.state == "dead" and item.version == version:
                alteration.version = version
                letter = read_dead(item)
                check_secrets([letter.state], secrets)
                if letter.message is not None:
                    alteration.item = made.item(letter, letter.message, replays)
                counted.append((root, replays))
            alterations.append((route, alteration))
        if counted:
            count_replays(self._store, counted, now_ms)
        outcomes = self._change(alterations, token)
        if not remembered:
            outcomes = self._guessed(batch, outcomes)
        return _performed(outcomes)

    def _guessed(self, batch: OperationBatch, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """The outcomes of a batch that may have been performed before, when its first answer was lost.

        A letter counts as replayed if the loop guard has counted this replay.
        """
        counts = replay_counts(self._store, [entry[3] for entry in batch.entries])
        return [
            Outcome.DONE if count >= entry[4] else outcome
            for entry, count, outcome in zip(batch.entries, counts, outcomes, strict=True)
        ]


class DeleteDeadLetters(_LetterKind):
    """Deletes dead letters for good. The operation's arguments are those of `chosen_letters`.

    Args:
        connection: where the letters are stored.
    """

    name = DELETE

    def plan(self, arguments: Mapping[str, str], until_ms: int, cursor: str | None, budget: int) -> PlannedBatch:
        """Choose the next letters. Each entry of the batch has the id, version and route of a letter."""
        found, after = self._page(arguments, until_ms, cursor, budget)
        return PlannedBatch(tuple([one.id, one.version, one.route] for one in found), after)

    def perform(
        self, arguments: Mapping[str, str], batch: OperationBatch, token: str, *, remembered: bool
    ) -> PerformedBatch:
        """Delete the letters of a batch."""
        changes = [(route, Alteration(item_id, "x", version=version)) for item_id, version, route in batch.entries]
        outcomes = self._change(changes, token)
        if not remembered:
            outcomes = [Outcome.DONE if outcome is Outcome.ABSENT else outcome for outcome in outcomes]
        return _performed(outcomes)


def _performed(outcomes: Sequence[Outcome]) -> PerformedBatch:
    done = outcomes.count(Outcome.DONE)
    left = Counter(outcome_words(outcome) for outcome in outcomes if outcome is not Outcome.DONE)
    return PerformedBatch(done, dict(left))

"""Stores dead letters as waiting messages again. A replay restarts the attempts and raises the replay count."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING

from retry_topic.dead_letters.loop_guard import count_replays, replay_counts
from retry_topic.dead_letters.selection import PAGE, DeadLetterInfo
from retry_topic.message import Message
from retry_topic.message.encoding import encode_body
from retry_topic.message.headers import RetryState, sign, write
from wheel_sched.errors import Rejected
from wheel_sched.store import DelayStore, Item, Outcome
from wheel_sched.store.core.change import Alteration

if TYPE_CHECKING:
    from retry_topic.tracing import Tracing  # needs the extra `otel`

_SAMPLES = 5


@dataclass(frozen=True, slots=True)
class Order:
    """One dead letter to replay, chosen by its id, for example from a report.

    Args:
        id: the id of the letter.
        due_ms: when the letter is sent, epoch ms. Defaults to now.
        value: the letter's new payload. Defaults to the payload it has.
    """

    id: str
    due_ms: int | None = None
    value: bytes | None = None


@dataclass(slots=True)
class Replayed:
    """The result of a replay. The result of a dry run says what a replay would do.

    Args:
        matched: how many letters were selected.
        replayed: how many letters wait again.
        guarded: how many letters the loop guard held back, because each was replayed too often before.
        unreadable: how many letters cannot be read.
        last_due_ms: when the last replayed letter is due; None when no letter was replayed.
        samples: the first five letters.
    """

    matched: int = 0
    replayed: int = 0
    guarded: int = 0
    unreadable: int = 0
    last_due_ms: int | None = None
    samples: list[DeadLetterInfo] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LetterReplay:
    """One replay of selected letters.

    Args:
        store: holds the letters and the counts of the loop guard.
        now_ms: the store's time at the start.
        due_ms: called with a letter and its number among the replayed letters; returns the due time.
        edit: called with a letter and the message that it holds; returns the message that is sent.
        max_replays: the loop guard's limit.
        dry_run: whether the letters are only counted.
        target: send to this topic instead of the message's own. Defaults to None.
        secrets: the first one signs. Defaults to none: headers are not signed.
        done: the result so far.
        tracing: makes a span of each letter that is replayed. Defaults to None: no spans.
    """

    store: DelayStore
    now_ms: int
    due_ms: Callable[[DeadLetterInfo, int], int]
    edit: Callable[[DeadLetterInfo, Message], Message]
    max_replays: int
    dry_run: bool
    target: str | None = None
    secrets: Sequence[bytes] = ()
    done: Replayed = field(default_factory=Replayed)
    tracing: Tracing | None = None

    def run(self, letters: Iterable[DeadLetterInfo], progress: Callable[[int], None] | None = None) -> Replayed:
        """Replay the letters in batches. `progress` is called with the number of letters handled so far."""
        rest = iter(letters)
        while batch := [*islice(rest, PAGE)]:
            self.done.matched += len(batch)
            self.done.samples += batch[: _SAMPLES - len(self.done.samples)]
            self._replay(batch)
            if progress is not None:
                progress(self.done.matched)
        return self.done

    def _replay(self, letters: Sequence[DeadLetterInfo]) -> None:
        done = self.done
        moves: list[Alteration] = []
        counts: list[tuple[str, int]] = []
        known = replay_counts(self.store, [letter.root for letter in letters])
        for letter, replays in zip(letters, known, strict=True):
            if letter.message is None:
                done.unreadable += 1
                continue
            if replays >= self.max_replays:
                done.guarded += 1
                continue
            due_ms = self.due_ms(letter, done.replayed + len(moves))
            item = self.item(letter, letter.message, replays + 1)
            moves.append(Alteration(letter.id, "q", due_ms, letter.version, item))
            counts.append((letter.root, replays + 1))
            done.last_due_ms = max(due_ms, done.last_due_ms or 0)
        if self.dry_run:
            done.replayed += len(moves)
        elif moves:
            count_replays(self.store, counts, self.now_ms)
            done.replayed += self.store.change(moves).count(Outcome.DONE)

    def item(self, letter: DeadLetterInfo, message: Message, replays: int) -> Item:
        """The item that replaces a letter in the store. Raises `Rejected` if `edit` returns no message."""
        state = replayed_state(letter.state, replays, letter.id)
        goes_to = message.topic if self.target is None else self.target
        if goes_to != message.topic:
            state = replace(state, original_topic=self.target)  # else consumers would ignore its headers
        message = self.edit(letter, message)
        if not isinstance(message, Message):
            raise Rejected(f"expected edit to return a Message, got: {message!r:.200}; {letter.id} stays dead")
        if self.tracing is not None and not self.dry_run:
            state = replace(state, trace_step=self.tracing.replaying(message, letter.topic, state))
        if self.secrets and state.id is not None:
            state = sign(state, message, self.secrets[0])
        message = message.to(goes_to, write(message.headers, state))
        return Item(letter.id, None, encode_body(message), letter.topic, letter.fair_refs, letter.route)


def replayed_state(state: RetryState, replays: int, item_id: str | None = None) -> RetryState:
    """The state of a dead letter that is replayed for the `replays`th time: its attempts start again from 0.

    `item_id`: the letter's id, if the store releases it. Defaults to None: it is sent from elsewhere.
    """
    return replace(
        state,
        attempt=0,
        replays=replays,
        item_id=item_id,
        first_failed_ms=None,
        due_ms=None,
        delay_ms=None,
        verdict=None,
        retry_after_ms=None,
        signature=None,
        oddities=(),
    )

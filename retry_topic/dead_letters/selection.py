"""Selects dead letters: reads them from the store and filters them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from retry_topic.message import Message
from retry_topic.message.encoding import decode_body
from retry_topic.message.headers import RetryState, read
from retry_topic.message.headers.failed_attempts import FailedAttempts, read_failed_attempts
from wheel_sched.errors import Rejected
from wheel_sched.store import DelayStore, Found
from wheel_sched.store.core.items import MAX_DUE_MS
from wheel_sched.store.fair_shares import REF

PAGE = 500  # letters in one call on the store


@dataclass(frozen=True, slots=True)
class DeadLetterInfo:
    """One dead letter, as it was read.

    Args:
        id: its id in the store.
        topic: the topic on which it first failed.
        died_ms: when it became a dead letter.
        reason: why it died, in words.
        state: its retry headers; empty when it cannot be read.
        message: the message that a replay would send; None when it cannot be read.
        route: the key that chose its shard. Defaults to its id.
        version: the version of its record. Defaults to 0, that of a letter that is stored for the first time.
        fair_refs: its refs that name a fair key, see `wheel_sched.store.fair_shares`. Defaults to none.
    """

    id: str
    topic: str
    died_ms: int
    reason: str
    state: RetryState
    message: Message | None
    route: str | None = None
    version: int = 0
    fair_refs: tuple[str, ...] = ()

    @property
    def failed_attempts(self) -> FailedAttempts:
        """What is known about the message's failed attempts: times, errors, delays, processes."""
        return read_failed_attempts(self.state.failed_attempts)

    @property
    def traceback(self) -> str | None:
        """The traceback of the last failed attempt. It is foreign text of several lines: escape it before you show it.

        None if the handler raised nothing, or the consumer keeps no tracebacks.
        """
        return self.state.traceback

    @property
    def root(self) -> str:
        """The name under which the store counts the replays of the message, see `RetryState.known_as`."""
        return self.id if self.state.id is None else self.state.known_as


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """Chooses dead letters. All conditions must hold. Defaults to all letters.

    Args:
        topic: only letters that first failed on this topic.
        error: a glob that must match the error class, its message or the reason.
        fingerprint: only errors with this fingerprint.
        since_ms: only letters that died at this time (epoch ms) or later.
        until_ms: only letters that died before this time.
        key: only messages with this key.
        ids: only letters with these ids.
        versions: id -> version: of the letters with these ids only those that still have this version. Defaults to any
            version.
    """

    topic: str | None = None
    error: str | None = None
    fingerprint: str | None = None
    since_ms: int = 0
    until_ms: int | None = None
    key: bytes | None = None
    ids: frozenset[str] | None = None
    versions: Mapping[str, int] = field(default_factory=dict, hash=False)

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
            and self.versions.get(letter.id, letter.version) == letter.version
        )


def read_dead(found: Found) -> DeadLetterInfo:
    """Read an item as a dead letter. An unreadable letter has its reason, but no message and an empty state."""
    try:
        message: Message | None = decode_body(found.body)
    except Rejected:
        message = None
    state = read(message.headers) if message is not None else RetryState()
    topic = state.original_topic or found.topic
    fair_refs = tuple(ref for ref in found.refs if ref.startswith(REF))
    return DeadLetterInfo(
        found.id, topic, found.score_ms, found.reason, state, message, found.route, found.version, fair_refs
    )


def select(store: DelayStore, chosen: DeadLetterFilter) -> Iterator[DeadLetterInfo]:
    """The dead letters that the filter chooses: in order of death, or by id when the filter has ids."""
    return filter(chosen.matches, map(read_dead, _dead_items(store, chosen)))


def _dead_items(store: DelayStore, chosen: DeadLetterFilter) -> Iterator[Found]:
    if chosen.ids is not None:
        for found in store.get(sorted(chosen.ids), anywhere=True):
            if found is not None and found.state == "dead":
                yield found
        return
    cursor = None
    greatest_ms = MAX_DUE_MS if chosen.until_ms is None else chosen.until_ms - 1
    while True:
        page = store.list_items(
            "dead",
            topic=chosen.topic,
            cursor=cursor,
            limit=PAGE,
            least_ms=chosen.since_ms,
            greatest_ms=greatest_ms,
        )
        yield from page.found
        cursor = page.cursor
        if cursor is None:
            return

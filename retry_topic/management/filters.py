"""Messages for lists, and the filter that chooses messages.

A message matches a filter if it meets all conditions. `since_ms` and `until_ms` are bounds of a message's due time, or
of the time at which a dead letter died.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from retry_topic.connection import Connection
from retry_topic.dead_letters import DeadLetterFilter, DeadLetterInfo
from retry_topic.dead_letters.selection import read_dead
from retry_topic.management.topics import unknown_topic
from wheel_sched.errors import ConfigError, Rejected
from wheel_sched.management.wording import instant
from wheel_sched.store import MAX_BATCH, Found, State
from wheel_sched.store.core.items import MAX_DUE_MS, encode_text
from wheel_sched.store.maintenance.backup import claimed_due_ms

_COUNTED = 10_000  # at most this many matching messages in other states are counted


@dataclass(frozen=True, slots=True)
class ListedMessage:
    """An item of the store, read as a message."""

    found: Found
    letter: DeadLetterInfo

    @property
    def id(self) -> str:
        return self.found.id

    @property
    def at_ms(self) -> int | None:
        """The due time, or the time of death of a dead letter; None for a held message without a due time."""
        if self.found.state == "leased":
            return claimed_due_ms(self.found)
        return self.found.score_ms or None

    @property
    def parked(self) -> bool:
        """Whether the message waits behind the failed message of its ordering key."""
        return self.found.state == "held" and self.found.reason.startswith("ordered: ")

    @property
    def error(self) -> str:
        """Class and message of the error. Without an error, the reason why the message is held or dead, or ""."""
        state = self.letter.state
        error = ": ".join(filter(None, (state.error_class, state.error_message)))
        return error or (self.found.reason if self.found.state in ("held", "dead") else "")

    def as_dict(self) -> dict[str, Any]:
        """The message as plain data for JSON; times in epoch milliseconds and in RFC 3339."""
        state, message, found = self.letter.state, self.letter.message, self.found
        at_ms = self.at_ms
        name = "died" if found.state == "dead" else "due"
        return {
            "id": self.id,
            "state": found.state,
            "topic": self.letter.topic,
            f"{name}_ms": at_ms,
            name: None if at_ms is None else instant(at_ms),
            "attempt": state.attempt,
            "max_attempts": state.max_attempts,
            "error": self.error or None,
            "error_class": state.error_class,
            "fingerprint": state.error_fingerprint,
            "reason": found.reason if found.state in ("held", "dead") else None,
            "policy": state.policy,
            "replays": state.replays,
            "group": state.consumer_group,
            "key": None if message is None or message.key is None else message.key.decode("utf-8", "backslashreplace"),
            "bytes": None if message is None else len(message.value),
        }


def checked_fingerprint(text: str) -> str:
    """The beginning of a fingerprint, in lower case.

    Raises:
        ConfigError: the text is empty or not hexadecimal.
    """
    if not text or any(one not in "0123456789abcdef" for one in text.lower()):
        raise ConfigError(f"expected hexadecimal characters, such as 3f2a, got: {text[:60]!r}")
    return text.lower()


def entry_of(found: Found) -> ListedMessage:
    """Read an item as a message. For an unreadable item, the retry state is empty and the message is None."""
    return ListedMessage(found, read_dead(found))


@dataclass(frozen=True, slots=True)
class Filter:
    """The conditions for messages.

    Args:
        topic: only messages that first failed in this topic, or wait for it. Defaults to None: any topic.
        states: only messages in these states. Defaults to none: the states that the caller names.
        error: a glob that must match the error's class, its message or the reason. Defaults to None: any.
        fingerprint: only errors whose fingerprint begins so. Defaults to None: any.
        since_ms: only messages that are due (or died) at this time, epoch ms, or later. Defaults to None: any.
        until_ms: only messages that are due (or died) before this time, epoch ms. Defaults to None: any.
        key: only messages with this key. Defaults to None: any.
        limit: at most this many. Defaults to None: all.
        parked: True for parked messages only, False for none of them. Defaults to None: both.
        least_attempts: only messages with at least this many failed attempts. Defaults to None: any.
        most_attempts: only messages with at most this many failed attempts. Defaults to None: any.
        policy: only messages that this policy (`name` or `name@version`) decided about. Defaults to None: any.
        id_start: only messages whose id begins so. Defaults to None: any.
        text: only messages whose id or error contains each of these texts, ignoring case. Defaults to none.
    """

    topic: str | None = None
    states: tuple[State, ...] = ()
    error: str | None = None
    fingerprint: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    key: str | None = None
    limit: int | None = None
    parked: bool | None = None
    least_attempts: int | None = None
    most_attempts: int | None = None
    policy: str | None = None
    id_start: str | None = None
    text: tuple[str, ...] = ()

    @property
    def narrow(self) -> bool:
        """Whether the filter has any condition besides `limit` and `parked`."""
        given = (self.topic, self.error, self.fingerprint, self.since_ms, self.until_ms, self.key)
        return bool(self.states) or self._finer or any(value is not None for value in given)

    @property
    def _finer(self) -> bool:
        """Whether the filter has a condition that `DeadLetterFilter` does not have."""
        given = (self.least_attempts, self.most_attempts, self.policy, self.id_start)
        return bool(self.text) or any(value is not None for value in given)

    @property
    def only_topic(self) -> bool:
        """Whether the filter has no condition besides `topic` and `limit`."""
        return not replace(self, topic=None).narrow and not self.states

    @property
    def only_dead(self) -> bool:
        """Whether the filter names no states, or only dead."""
        return self.states in ((), ("dead",))

    @property
    def only_states(self) -> bool:
        """Whether the filter has no condition besides `states`, `limit` and `parked`."""
        return not replace(self, states=()).narrow

    def matches(self, entry: ListedMessage) -> bool:
        state, letter = entry.letter.state, entry.letter
        texts = (state.error_class or "", state.error_message or "", entry.found.reason)
        at_ms = entry.at_ms
        return (
            (self.topic is None or entry.found.topic == self.topic)
            and (self.error is None or any(fnmatchcase(text, self.error) for text in texts))
            and (self.fingerprint is None or (state.error_fingerprint or "").startswith(self.fingerprint))
            and (self.since_ms is None or (at_ms is not None and at_ms >= self.since_ms))
            and (self.until_ms is None or (at_ms is not None and at_ms < self.until_ms))
            and (self.parked is None or self.parked == entry.parked)
            and (self.key is None or (letter.message is not None and letter.message.key == encode_text(self.key)))
            and (self.least_attempts is None or state.attempt >= self.least_attempts)
            and (self.most_attempts is None or state.attempt <= self.most_attempts)
            and (self.policy is None or self.policy in (state.policy, (state.policy or "").partition("@")[0]))
            and (self.id_start is None or entry.id.startswith(self.id_start))
            and all(text.lower() in f"{entry.id}\n{entry.error}".lower() for text in self.text)
        )

    def elsewhere(self, connection: Connection, states: Sequence[State], dead: str = "add --dead") -> str | None:
        """Advice for the user when no message in `states` matches.

        The advice names the other states in which messages match, or says that the topic is unknown. When the command
        line names states, the advice is only about an unknown topic.

        Args:
            connection: where to look.
            states: the states that were searched.
            dead: what to do about dead letters. Defaults to the option that selects them.

        Returns:
            The advice; None when there is nothing to advise.
        """
        if self.states:
            return None if self.topic is None else unknown_topic(connection, self.topic)
        found = []
        wide = replace(self, limit=_COUNTED, parked=None)
        places: tuple[tuple[State, str, str, str], ...] = (
            ("dead", "dead letter does", "dead letters do", dead),
            ("due", "that waits does", "that wait do", "see `wheel-sched run-now`"),
            ("held", "that is held does", "that are held do", "see `wheel-sched run-now`"),
            ("leased", "in flight does", "in flight do", "its attempt runs now"),
        )
        for state, one, several, advice in places:
            found_here = () if state in states else replace(wide, states=(state,)).entries(connection, ())
            count = sum(1 for _ in found_here)
            if count:
                more = "+" if count == _COUNTED else ""
                found.append(f"{count:,}{more} {one if count == 1 else several}: {advice}")
        if found:
            return f"nothing that is {' or '.join(states)} matches; {'; '.join(found)}"
        return None if self.topic is None else unknown_topic(connection, self.topic)

    def selection(self, fingerprint: str | None = None) -> DeadLetterFilter:
        """The filter as a `DeadLetterFilter`, without limit, states, `parked` and the beginning of a fingerprint.

        `fingerprint`: a whole fingerprint to choose instead; None: any.

        Raises:
            Rejected: the filter has a condition on attempts, policy, id or text, which a `DeadLetterFilter` lacks.
        """
        if self._finer:
            raise Rejected("dead letters cannot be chosen here by attempts, policy, id or text: nothing was done")
        key = None if self.key is None else encode_text(self.key)
        return DeadLetterFilter(self.topic, self.error, fingerprint, self.since_ms or 0, self.until_ms, key)

    def bounds(self, state: State) -> tuple[int, int]:
        """The least and the greatest score that a matching item in this state can have in the store."""
        if state not in ("due", "dead"):  # in other states the store has another order
            return 0, MAX_DUE_MS
        return self.since_ms or 0, MAX_DUE_MS if self.until_ms is None else max(self.until_ms - 1, 0)

    def entries(self, connection: Connection, states: Sequence[State]) -> Iterator[ListedMessage]:
        """The messages that match, state by state, at most `limit`. Due and dead messages are in order of `at_ms`.

        Args:
            connection: where to look.
            states: the states to search when the filter names none.
        """
        left = self.limit
        for state in self.states or states:
            least_ms, greatest_ms = self.bounds(state)
            cursor = None
            while True:
                page = connection.store.list_items(
                    state,
                    topic=self.topic,
                    cursor=cursor,
                    limit=MAX_BATCH,
                    least_ms=least_ms,
                    greatest_ms=greatest_ms,
                )
                for entry in map(entry_of, page.found):
                    if self.matches(entry):
                        if left == 0:
                            return
                        yield entry
                        left = None if left is None else left - 1
                cursor = page.cursor
                if cursor is None or left == 0:
                    break

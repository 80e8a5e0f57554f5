"""Lists topics with their records and messages, and pauses and resumes topics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from retry_topic.connection import Connection
from wheel_sched.errors import NotDone
from wheel_sched.store import Counts, State
from wheel_sched.store.core.items import STATES

_NAMED = 10  # how many topics an error names


@dataclass(frozen=True, slots=True)
class ListedTopic:
    """A topic that the broker or the store knows.

    Args:
        topic: the name of the topic; "" for items of the store without a topic.
        records: how many records the broker holds; None when the broker has no such topic.
        messages: how many messages the store holds, by state.
        paused_since_ms: when the topic was paused, epoch ms; None when it is not paused.
    """

    topic: str
    records: int | None
    messages: Mapping[State, int]
    paused_since_ms: int | None

    def as_dict(self) -> dict[str, Any]:
        """The topic as data for JSON."""
        numbers = {str(state): self.messages[state] for state in STATES}
        return {"topic": self.topic, "records": self.records, **numbers, "paused_since_ms": self.paused_since_ms}


def listed_topics(connection: Connection) -> tuple[list[ListedTopic], int]:
    """All topics in order of name, and the store's time in epoch milliseconds."""
    records = connection.broker.topics()
    counts = connection.store.counts()
    found = [listed_topic(topic, records, counts) for topic in sorted({*records, *counts.topics})]
    return found, counts.now_us // 1000


def listed_topic(topic: str, records: Mapping[str, int], counts: Counts) -> ListedTopic:
    """One topic, with its numbers of records at the broker and of messages in the store."""
    messages: dict[State, int] = {state: counts.now.get((state, topic), 0) for state in STATES}
    return ListedTopic(topic, records.get(topic), messages, counts.paused.get(topic))


@dataclass(frozen=True, slots=True)
class Resumed:
    """What `resume_topic` did: whether the topic was paused before, and how many messages now wait again."""

    was_paused: bool
    released: int

    @property
    def changed(self) -> bool:
        """Whether anything was changed."""
        return self.was_paused or self.released > 0


def pause_topic(connection: Connection, topic: str, *, force: bool = False) -> int:
    """Hold all messages of a topic until `resume_topic`, including later ones. Returns how many this call held.

    Messages in flight finish their attempt.

    Args:
        connection: where the messages are stored.
        topic: the topic.
        force: whether to accept a topic that does not exist. Defaults to False.

    Raises:
        NotDone: the topic is unknown; nothing was changed.
    """
    if not force:
        known_topic(connection, topic)
    return connection.store.pause(topic)


def resume_topic(connection: Connection, topic: str, *, spread_ms: int = 0, force: bool = False) -> Resumed:
    """Deliver the messages of a paused topic again.

    Args:
        connection: where the messages are stored.
        topic: the topic.
        spread_ms: spread overdue messages over this time. Defaults to 0: they are due at once.
        force: whether to accept a topic that does not exist. Defaults to False.

    Raises:
        NotDone: the topic is unknown; nothing was changed.
    """
    if not force:
        known_topic(connection, topic)
    was_paused = topic in connection.store.counts().paused
    return Resumed(was_paused, connection.store.resume(topic, spread_ms=spread_ms))


def unknown_topic(connection: Connection, topic: str) -> str | None:
    """A sentence about a topic that neither the broker nor the store knows; None for a known topic.

    An unknown topic is mostly a typing mistake, so the sentence names similar and known topics.
    """
    counts = connection.store.counts()
    known = {*counts.topics, *counts.paused} - {""}
    if topic in known:
        return None
    known |= {*connection.broker.topics()}
    if topic in known:
        return None
    close = get_close_matches(topic, known, 1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    names = sorted(known)
    some = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else "")
    return f"there is no topic {topic!r}: nothing was done; {hint}known: {some or 'none'}"


def known_topic(connection: Connection, topic: str) -> None:
    """Raise an error for an unknown topic.

    Raises:
        NotDone: the topic is unknown; nothing was changed.
    """
    if (words := unknown_topic(connection, topic)) is not None:
        raise NotDone(f"{words}; --force accepts it")

"""The inbox of groups of dead letters. Each group has a state, counts, a sample and a note.

The store counts the letters of each group. So a list of groups reads no letters except the samples that it shows. Only
a search for a text reads more samples, at most 200.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from retry_topic.connection import Connection
from retry_topic.dead_letters import DeadLetterInfo
from retry_topic.dead_letters.groups import reason_code
from retry_topic.dead_letters.selection import read_dead
from retry_topic.management.inbox.notes import GroupNote, GroupNotes
from retry_topic.management.listing import error_of
from wheel_sched.errors import Rejected
from wheel_sched.store import DeathGroup, DeathGroups, Found
from wheel_sched.store.death_groups import OTHER_GROUP

GroupState = Literal["new", "acknowledged", "fixed", "regressed"]
GROUP_STATES: tuple[GroupState, ...] = get_args(GroupState)
Sort = Literal["count", "last"]

_READ = 200  # how many samples a search for a text reads
_REF = "fp:"
_RISE = 3  # deaths rise if the last hour has over 3 times the mean of the hours before it,
_RISE_ABOVE = 10  # and over 10 deaths


@dataclass(frozen=True, slots=True)
class InboxGroup:
    """One group of the inbox.

    Args:
        counted: the counts of the group.
        note: what people have noted about the group.
        state: see `state_of`.
        sample: the letter that died last; None when it has left the store, or was not asked for.
    """

    counted: DeathGroup
    note: GroupNote
    state: GroupState
    sample: DeadLetterInfo | None = None

    @property
    def error(self) -> str:
        """Class and message of the error of the sample; "" without a sample."""
        return "" if self.sample is None else error_of(self.sample)

    def as_dict(self) -> dict[str, Any]:
        """The group as data for JSON."""
        counted, sample = self.counted, self.sample
        return {
            "topic": counted.topic,
            "group": counted.group,
            "state": self.state,
            "count": counted.count,
            "ever": counted.ever,
            "first_ms": counted.first_ms,
            "last_ms": counted.last_ms,
            "last_id": counted.last_id,
            "by_hour": list(counted.by_hour),
            "error_class": None if sample is None else sample.state.error_class,
            "error": None if sample is None else self.error,
            "note": self.note.as_dict(),
        }


@dataclass(frozen=True, slots=True)
class InboxPage:
    """A page of the inbox.

    Args:
        groups: the groups, in the order that was asked for.
        cursor: the cursor for the next page; None for the last page.
        states: how many groups are in each state, in the topic that the request names, or in all topics.
        dead: how many dead letters the namespace has.
        uncounted: how many of the dead letters are in no group, because they died under an older release.
        now_ms: the store's time, epoch ms.
    """

    groups: list[InboxGroup]
    cursor: str | None
    states: dict[GroupState, int]
    dead: int
    uncounted: int
    now_ms: int


def state_of(note: GroupNote, last_ms: int) -> GroupState:
    """The state of a group: the mark that a person has set, or "new". A death after "fixed" makes it "regressed".

    Args:
        note: what people have noted about the group.
        last_ms: when the group's last letter died, epoch ms.
    """
    if note.mark == "fixed":
        return "regressed" if last_ms > note.marked_ms else "fixed"
    return note.mark or "new"


def is_rising(by_hour: Sequence[int]) -> bool:
    """Whether deaths rise: the last hour has over 10, and over three times the mean of the hours before."""
    *before, last = by_hour
    return last > _RISE_ABOVE and last * max(len(before), 1) > _RISE * sum(before)


def group_of(found: Found) -> str:
    """The name of a dead letter's group: the error's fingerprint, or without one the code of the reason."""
    for ref in found.refs:
        if ref.startswith(_REF) and len(ref) > len(_REF):
            return ref.removeprefix(_REF)
    return reason_code(found.reason)


def is_selectable(topic: str, group: str) -> bool:
    """Whether the letters of a group can be selected.

    If there are too many groups, the store counts the other letters as one group. These letters cannot be selected.
    """
    return (topic, group) != ("", OTHER_GROUP)


class Inbox:
    """The inbox of a namespace. Thread-safe.

    Args:
        connection: where the letters are stored.
    """

    def __init__(self, connection: Connection) -> None:
        self._store = connection.store
        self.notes = GroupNotes(connection.store)

    def groups(self) -> list[InboxGroup]:
        """All groups that have letters, or had letters in the last 30 days, without samples. The largest is first."""
        return self._of(DeathGroups(self._store).groups().groups)

    def group(self, topic: str, group: str) -> tuple[InboxGroup | None, int]:
        """The group of this topic and name with its sample, or None; and the store's time in epoch ms."""
        found, now_ms = DeathGroups(self._store).group(topic, group)
        if found is None:
            return None, now_ms
        note = self.notes.get(topic, group)
        return self._with_samples([InboxGroup(found, note, state_of(note, found.last_ms))])[0], now_ms

    def page(
        self,
        *,
        state: GroupState | None = None,
        topic: str | None = None,
        text: str = "",
        sort: Sort = "count",
        limit: int = 50,
        cursor: str | None = None,
    ) -> InboxPage:
        """One page of the inbox.

        Args:
            state: only groups in this state. Defaults to None: any.
            topic: only groups of this topic. Defaults to None: any.
            text: only groups with this text in topic, group, note or error, ignoring case. Errors are searched only in
                the first 200 groups. Defaults to "": any.
            sort: "count", or "last" for the time of the last death; the greatest first. Defaults to "count".
            limit: at most this many groups. Defaults to 50.
            cursor: the cursor of the page before. Defaults to None: the first page.

        Raises:
            Rejected: the cursor is not the cursor of a page.
        """
        counted = DeathGroups(self._store).groups()
        places = {_place(one, sort): one for one in counted.groups if topic is None or one.topic == topic}
        known = self._of(places[place] for place in sorted(places))
        states: dict[GroupState, int] = {name: sum(one.state == name for one in known) for name in GROUP_STATES}
        chosen = [one for one in known if state is None or one.state == state]
        if text:
            read = [*self._with_samples(chosen[:_READ]), *chosen[_READ:]]
            chosen = [one for one in read if _has(one, text.lower())]
        if cursor is not None:
            behind = _read_cursor(cursor)
            chosen = [one for one in chosen if _place(one.counted, sort) > behind]
        shown = self._with_samples(chosen[:limit])
        more = json.dumps(_place(shown[-1].counted, sort)) if len(chosen) > limit else None
        return InboxPage(shown, more, states, counted.dead, counted.uncounted, counted.now_ms)

    def _of(self, counted: Iterable[DeathGroup]) -> list[InboxGroup]:
        notes = self.notes.all()
        found = ((one, notes.get((one.topic, one.group), GroupNote(one.topic, one.group))) for one in counted)
        return [InboxGroup(one, note, state_of(note, one.last_ms)) for one, note in found]

    def _with_samples(self, groups: Sequence[InboxGroup]) -> list[InboxGroup]:
        ids = [one.counted.last_id for one in groups]
        items = self._store.get(ids, anywhere=True) if ids else []
        return [
            InboxGroup(one.counted, one.note, one.state, None if item is None else read_dead(item))
            for one, item in zip(groups, items, strict=True)
        ]


def _place(one: DeathGroup, sort: Sort) -> tuple[int, str, str]:
    return (-one.count if sort == "count" else -one.last_ms, one.topic, one.group)


def _read_cursor(cursor: str) -> tuple[int, str, str]:
    try:
        number, topic, group = json.loads(cursor)
        if type(number) is int and type(topic) is str and type(group) is str:
            return number, topic, group
    except (ValueError, TypeError, RecursionError):
        pass
    raise Rejected(f"expected the cursor of a page before, got: {cursor[:80]!r}; start without a cursor")


def _has(one: InboxGroup, text: str) -> bool:
    texts = (one.counted.topic, one.counted.group, one.note.text, one.note.link, one.error)
    return any(text in found.lower() for found in texts)

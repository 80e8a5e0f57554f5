"""Selects the messages that a request is for: by ids, by a filter, or all.

A request without ids, a filter or the word "all" fails. So no request selects the whole store by accident.

An id has one of three forms:

1. The id that `list` shows. It names one attempt.
2. The same id without its attempt.
3. The id that handlers and logs show, from the header `retry-id`. The publisher may have chosen it, and all groups that
   read the topic use the same id. The store has no index of this form. To find such an id, up to 100,000 items are
   read, in batches.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from retry_topic.connection import Connection
from retry_topic.management.filters import Filter, ListedMessage, entry_of
from wheel_sched.errors import NotDone, Rejected
from wheel_sched.management.wording import amount
from wheel_sched.store import MAX_BATCH, Found, State
from wheel_sched.store.core.items import STATES

SAMPLES = 5
_ATTEMPTS_TRIED = 100  # for an id without its attempt
_LOOKED_THROUGH = 100_000
_KEPT = 64  # an item's id begins with this many characters of the published id, see `RetryState.known_as`
_ATTEMPT = re.compile(r"(.*?)(?:r([0-9]+))?\.([0-9]+)")


@dataclass(frozen=True, slots=True)
class SelectedMessage:
    """One selected message, without its payload, because millions may be selected.

    Args:
        id: its id in the store.
        state: its state when it was selected.
        topic: its topic.
        route: the text that chose its shard; None: its id.
        version: its version when it was selected. A change does nothing if the message has another version by then.
    """

    id: str
    state: State
    topic: str
    route: str | None
    version: int


@dataclass(frozen=True, slots=True)
class Selected:
    """The selected messages.

    Args:
        members: all selected messages, without payload. Defaults to none.
        samples: the first five messages, with payload. Defaults to none.
        stored_as: from the requested id to the message's id in the store, where these differ. Defaults to none.
        absent: the ids given to `select_exactly` that do not exist. Defaults to none.
    """

    members: list[SelectedMessage] = field(default_factory=list)
    samples: list[ListedMessage] = field(default_factory=list)
    stored_as: Mapping[str, str] = field(default_factory=dict)
    absent: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.members)

    def dead(self) -> list[SelectedMessage]:
        return [member for member in self.members if member.state == "dead"]

    def living(self) -> list[SelectedMessage]:
        return [member for member in self.members if member.state != "dead"]


@dataclass(frozen=True, slots=True)
class FoundMessages:
    """The messages that were found by ids.

    Args:
        messages: each message once.
        stored_as: from the requested id to the message's id in the store, where these differ.
    """

    messages: list[ListedMessage]
    stored_as: Mapping[str, str]


def check_choice(ids: Sequence[str], chosen: Filter, everything: bool, what: str = "messages") -> None:
    """Check that a request names messages in exactly one way: by ids, by a filter, or all.

    Args:
        ids: the ids of the request.
        chosen: the filter.
        everything: whether the request is for all messages.
        what: what the request is for, in words for the error. Defaults to "messages".

    Raises:
        Rejected: the request has no ids, no filter and not `everything`; or it has ids and one of the other two.
    """
    if ids and (chosen.narrow or everything):
        raise Rejected("Give ids, or a filter, not both.")
    if not ids and not chosen.narrow and not everything:
        raise Rejected(f"Which {what}? Give ids, a filter (--topic, --error, ...) or --all.")


def select(
    connection: Connection, ids: Sequence[str], chosen: Filter, everything: bool, states: Sequence[State]
) -> Selected:
    """Select messages.

    Args:
        connection: where the messages are stored.
        ids: the ids of the messages, in the three forms that the module describes.
        chosen: the filter.
        everything: whether the request is for all messages.
        states: the states to select from when the filter names none.

    Raises:
        Rejected: see `check_choice`.
        NotDone: an id does not exist, or several messages have it; nothing was changed.
    """
    check_choice(ids, chosen, everything)
    if ids:
        found = find_messages(connection, ids, "nothing was changed")
        return _gathered(found.messages, found.stored_as)
    return _gathered(chosen.entries(connection, states))


def select_exactly(connection: Connection, versions: Mapping[str, int]) -> Selected:
    """Select the messages of these ids, to change exactly these versions.

    If a message has another version by now, it is selected, and its change has the outcome `OTHER_VERSION`. An id that
    no longer exists is in `Selected.absent`, and a change counts it as `ABSENT`.

    Args:
        connection: where the messages are stored.
        versions: from the id in the store to the version, both from an earlier selection.
    """
    found = connection.store.get([*versions], anywhere=True)
    absent = [item_id for item_id, item in zip(versions, found, strict=True) if item is None]
    chosen = _gathered((entry_of(item) for item in found if item is not None), absent=absent)
    chosen.members[:] = [replace(member, version=versions[member.id]) for member in chosen.members]
    return chosen


def _gathered(
    entries: Iterable[ListedMessage], stored_as: Mapping[str, str] | None = None, absent: Sequence[str] = ()
) -> Selected:
    chosen = Selected(stored_as=stored_as or {}, absent=absent)
    for entry in entries:
        found = entry.found
        chosen.members.append(SelectedMessage(found.id, found.state, found.topic, found.route, found.version))
        if len(chosen.samples) < SAMPLES:
            chosen.samples.append(entry)
    return chosen


def find_messages(
    connection: Connection, ids: Sequence[str], unchanged: str = "", look_through: int | None = None
) -> FoundMessages:
    """Find the messages of these ids, each once.

    Args:
        connection: where the messages are stored.
        ids: the ids of the messages, in the three forms that the module describes.
        unchanged: a clause for error texts, such as "nothing was changed". Defaults to "".
        look_through: how many items are read to find an id of the third form. Defaults to None: 100,000.

    Raises:
        NotDone: no message has an id, or several have it.
    """
    look_through = _LOOKED_THROUGH if look_through is None else look_through
    wanted = list(dict.fromkeys(ids))
    found = dict(zip(wanted, connection.store.get(wanted, anywhere=True), strict=True))
    for item_id in wanted:
        if found[item_id] is None:
            attempts = [f"{item_id}.{number}" for number in range(1, _ATTEMPTS_TRIED + 1)]
            items = connection.store.get(attempts, anywhere=True)
            found[item_id] = next((item for item in reversed(items) if item is not None), None)
    missing = [item_id for item_id in wanted if found[item_id] is None]
    every = True
    if missing:
        known, every = _known_as(connection, missing, look_through)
        problems = []
        for item_id in missing:
            latest = _latest(known.get(item_id, []))
            if len(latest) > 1:
                stored = ", ".join(sorted(item.id for item in latest)[:5])
                problems.append(f"{item_id} is the id of {amount(len(latest), 'message')}: choose from {stored}")
            elif latest:
                found[item_id] = latest[0]
        if problems:
            raise NotDone("; ".join([*problems[:5], *([unchanged] if unchanged else [])]))
    missing = [item_id for item_id in wanted if found[item_id] is None]
    if missing:
        raise NotDone(_absent(missing, unchanged, None if every else look_through))
    chosen = {item.id: entry_of(item) for item in found.values() if item is not None}
    stored_as = {item_id: item.id for item_id, item in found.items() if item is not None and item.id != item_id}
    return FoundMessages(list(chosen.values()), stored_as)


def _absent(ids: Sequence[str], unchanged: str, looked: int | None) -> str:
    where = "" if looked is None else f"among the {looked:,} that were searched; give the id that `list` shows"
    why = "it was delivered or deleted, never stored here, or its failure still waits for a retry service"
    text = f"there is no message {', '.join(ids[:5])} {where}".rstrip()
    advice = "; ".join(filter(None, [unchanged, why, "see `wheel-sched list` and `wheel-sched stats`"]))
    return f"{text}: {advice}"


def _known_as(connection: Connection, ids: Sequence[str], most: int) -> tuple[dict[str, list[Found]], bool]:
    """Search the store for messages that have one of these ids as `retry-id`.

    Returns the items that were found, by id, and True if every item of the store was read, False if only `most`.
    """
    known: dict[str, list[Found]] = {}
    wanted, starts = set(ids), tuple(item_id[:_KEPT] for item_id in ids)
    looked_at = 0
    for page in _pages(connection):
        for item in page:
            if item.id.startswith(starts):
                state = entry_of(item).letter.state
                for name in wanted & {f"{state.id}", state.known_as, state.id_base}:
                    known.setdefault(name, []).append(item)
        looked_at += len(page)
        if looked_at >= most:
            return known, False
    return known, True


def _pages(connection: Connection) -> Iterator[list[Found]]:
    for state in STATES:
        cursor = None
        while True:
            page = connection.store.list_items(state, cursor=cursor, limit=MAX_BATCH)
            yield page.found
            cursor = page.cursor
            if cursor is None:
                break


def _latest(items: Iterable[Found]) -> list[Found]:
    """For each message, the item of its latest attempt. An attempt after a replay is later than those before it.

    An item whose id does not have the form of an attempt counts as a message of its own.
    """
    latest: dict[str, tuple[tuple[int, int], Found]] = {}
    for item in items:
        parts = _ATTEMPT.fullmatch(item.id)
        name, place = (item.id, (0, 0)) if parts is None else (parts[1], (int(parts[2] or 0), int(parts[3])))
        if name not in latest or latest[name][0] < place:
            latest[name] = place, item
    return [item for _, item in latest.values()]

"""Chooses the messages that an action changes, by ids or by a search. At most 10,000 messages can be chosen.

Only the ids, versions, states and due times of the messages are kept in memory, because payloads may be large.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from retry_topic.connection import Connection
from retry_topic.management.changing import Reach, outcome_words
from retry_topic.management.filters import ListedMessage, entry_of
from retry_topic.management.paging import matching_page
from retry_topic.management.search import parse_search
from retry_topic.management.selecting import SAMPLES, Selected, SelectedMessage, find_messages
from wheel_sched.dashboard import ActionField, NotFound
from wheel_sched.dashboard.actions import digest_of
from wheel_sched.dashboard.parts import Arguments
from wheel_sched.errors import NotDone, Rejected
from wheel_sched.management.wording import amount, one_line, relative, state_word
from wheel_sched.store import MAX_BATCH, Outcome, State

MOST = 10_000
"""The greatest number of messages that an action changes."""

_LOOKED_AT = 100_000
_FOUND_BY_OTHER_IDS = 2_000  # items that are read to find a message by the id in its log lines
_OTHERS = {
    "due": "waiting, which this does not change",
    "leased": outcome_words(Outcome.IN_FLIGHT),
    "held": "held, which this does not change",
    "dead": "dead, which this does not change",
}

FIELDS = (
    ActionField("ids", "the ids of the messages", many=True),
    ActionField("search", "instead of ids: a search, as on the page Messages"),
)


@dataclass(slots=True)
class ChosenMessages:
    """The messages that an action was asked to change.

    Args:
        meant: the messages that the action changes.
        others: how many messages the action leaves as they are, by reason.
        seen: id, version, state and due time of each message that the action changes.
    """

    meant: Selected = field(default_factory=Selected)
    others: Counter[str] = field(default_factory=Counter)
    seen: list[tuple[str, int, str, int]] = field(default_factory=list)

    @property
    def digest(self) -> str:
        """A hash of the messages' ids, versions, states and due times."""
        return digest_of([*sorted(self.seen), *sorted(self.others.items())])

    @property
    def warning(self) -> str:
        """Says how many messages the action leaves as they are, and why; "" if it changes all."""
        left = "; ".join(f"{count:,} {why}" for why, count in self.others.items())
        return f"These are left as they are: {left}." if left else ""

    def samples(self, now_ms: int) -> tuple[str, ...]:
        """The first five messages, a line each."""
        return tuple(_line(entry, now_ms) for entry in self.meant.samples)

    def add(self, entry: ListedMessage, states: Sequence[State]) -> None:
        """Add a message. The action changes it if its state is one of these."""
        found = entry.found
        if found.state not in states:
            self.others[_OTHERS[found.state]] += 1
            return
        due_ms = 0 if found.state == "leased" else found.score_ms  # the lease's end, which renewals change
        self.seen.append((found.id, found.version, found.state, due_ms))
        self.meant.members.append(SelectedMessage(found.id, found.state, found.topic, found.route, found.version))
        if len(self.meant.samples) < SAMPLES:
            self.meant.samples.append(entry)


def choose(connection: Connection, arguments: Arguments, reach: Reach) -> ChosenMessages:
    """Choose the messages of an action.

    Args:
        connection: where the messages are stored.
        arguments: the arguments of the action, with the fields `FIELDS`.
        reach: the states of messages that the action can change.

    Raises:
        Rejected: the arguments have neither ids nor a search, or both; or the search chooses everything, or too many
            messages.
        NotFound: no message has one of the ids.
    """
    ids, text = arguments.get("ids") or [], arguments.get("search", "")
    if bool(ids) == bool(text):
        raise Rejected("expected either ids or a search: nothing was changed; choose messages and ask again")
    if ids:
        return _by_ids(connection, list(dict.fromkeys(ids)), reach.states)
    chosen = parse_search(text).filter(connection.store.now_ms())
    if not chosen.narrow:
        raise Rejected("the search chooses every message: nothing was changed; name a topic or a state at least")
    chosen = replace(chosen, states=chosen.states or tuple(reach.searched), parked=reach.parked)
    found, looked, cursor = ChosenMessages(), 0, None
    while True:
        page = matching_page(connection, chosen, cursor=cursor, limit=MAX_BATCH + 1, most=_LOOKED_AT - looked)
        for entry in page.entries:
            found.add(entry, reach.states)
        looked, cursor = looked + page.looked, page.cursor
        if len(found.meant) > MOST:
            _refuse("dead" in chosen.states)
        if cursor is None:
            return found
        if not page.looked:
            raise Rejected(
                f"more than {_LOOKED_AT:,} messages would have to be read: nothing was changed; name a topic or a "
                "state, or use the command line"
            )


def _refuse(dead: bool) -> None:
    """Raise the error for too many messages."""
    way = "; for dead letters start a replay operation on the page Dead letters" if dead else ""
    raise Rejected(
        f"these are more than {MOST:,} messages: nothing was changed; narrow the search, or use the command line{way}"
    )


def _by_ids(connection: Connection, ids: Sequence[str], states: Sequence[State]) -> ChosenMessages:
    """The messages of these ids. An id may be an item's id in the store, or the message id in logs and handlers."""
    if len(ids) > MOST:
        _refuse(dead=True)
    found, absent, seen = ChosenMessages(), [], set()
    for at in range(0, len(ids), MAX_BATCH):
        part = ids[at : at + MAX_BATCH]
        for item_id, item in zip(part, connection.store.get(part, anywhere=True), strict=True):
            if item is None:
                absent.append(item_id)
            else:
                seen.add(item.id)
                found.add(entry_of(item), states)
    for item_id in absent[:SAMPLES]:
        try:
            others = find_messages(connection, [item_id], "nothing was changed", _FOUND_BY_OTHER_IDS).messages
        except NotDone as error:
            if len(ids) == 1:
                raise NotFound(str(error)) from error
            found.others["gone, or never stored here"] += 1
        else:
            for entry in others:
                if entry.id not in seen:
                    seen.add(entry.id)
                    found.add(entry, states)
    if len(absent) > SAMPLES:
        found.others["gone, or never stored here"] += len(absent) - SAMPLES
    return found


def _line(entry: ListedMessage, now_ms: int) -> str:
    at = "" if entry.at_ms is None else f"  {relative(entry.at_ms, now_ms)}"
    return (
        f"{entry.id}  {state_word(entry.found.state)}{at}  {entry.letter.topic}  {one_line(entry.error, 80)}".rstrip()
    )


def messages(count: int) -> str:
    """A number of messages in words."""
    return amount(count, "message")

"""Changes selected messages: makes them due now, gives them another due time, holds, releases or deletes them.

The store changes at most 500 messages in one step. An interrupted change has changed some messages completely, and the
others not at all. If a message has got a new version since it was selected, a change leaves it alone (`OTHER_VERSION`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from retry_topic.connection import Connection
from retry_topic.dead_letters import DeadLetterFilter, DeadLetters
from retry_topic.dead_letters.dead_topic import check_secrets
from retry_topic.management.selecting import Selected, SelectedMessage
from wheel_sched.management.moments import check_pace
from wheel_sched.store import MAX_BATCH, Outcome, State
from wheel_sched.store.core.change import Alteration
from wheel_sched.store.core.items import STATES

Progress = Callable[[int], None]  # called with the number of messages handled so far

_LIVING: tuple[State, ...] = ("due", "held")
_DELETE = {"due": "c", "held": "c", "leased": "c", "dead": "x"}  # verbs of change.lua: cancel, delete a dead letter
_WORDS = {
    Outcome.IN_FLIGHT: "in flight: their attempt runs now",
    Outcome.ABSENT: "gone meanwhile",
    Outcome.WRONG_STATE: "in another state meanwhile",
    Outcome.OTHER_VERSION: "changed meanwhile",
    Outcome.CANCELLED: "in flight: will not be tried again after this attempt",
}


@dataclass(frozen=True, slots=True)
class Reach:
    """Which messages a change is for.

    Args:
        states: the change is for messages in these states.
        searched: the states in which a filter looks if it names no states.
        parked: whether a filter chooses parked messages, see `Filter`. An id always can. Defaults to False.
    """

    states: Sequence[State]
    searched: Sequence[State] = _LIVING
    parked: bool | None = False


RUN_NOW = Reach(("due", "held", "dead"))
REPLAY = Reach(("dead",), ("dead",))
RESCHEDULE = Reach(_LIVING)
HOLD = Reach(("due",), ("due",))
RELEASE = Reach(("held",), ("held",))
DELETE = Reach(STATES, parked=None)


def _no_progress(_: int) -> None:
    """Ignore the progress of a change."""


@dataclass(frozen=True, slots=True)
class ChangePace:
    """How the new due times are spread: at a rate or over a time span. Without both, all messages are due at once.

    Args:
        rate: about this many messages become due a second. Defaults to None: no rate.
        spread_ms: the due times are spread evenly over this time. Defaults to None: no spread.

    Raises:
        Rejected: both are given, or the rate is out of bounds, see `check_pace`.
    """

    rate: float | None = None
    spread_ms: int | None = None

    def __post_init__(self) -> None:
        check_pace(self.rate, self.spread_ms)

    def due_ms(self, start_ms: int, place: int, total: int) -> int:
        """The due time (epoch ms) of one of `total` messages; `place` is its number, from 0."""
        if self.rate is not None:
            return start_ms + int(place * 1000 / self.rate)
        return start_ms + (self.spread_ms or 0) * place // max(total, 1)

    def per_second(self, total: int) -> float | None:
        """The pace as messages a second; None for all at once."""
        if self.spread_ms:
            return max(total * 1000 / self.spread_ms, 1e-6)
        return self.rate


@dataclass(frozen=True, slots=True)
class ChangedMessages:
    """What a change did.

    Args:
        outcomes: how many messages had each outcome. An outcome that no message had is missing.
        guarded: how many dead letters the loop guard held back; each counts as `WRONG_STATE` too. Defaults to 0.
        paused: how many messages stay held because their topic is paused. Defaults to 0.
    """

    outcomes: Mapping[Outcome, int]
    guarded: int = 0
    paused: int = 0

    @property
    def done(self) -> int:
        """How many messages were changed."""
        return self.outcomes.get(Outcome.DONE, 0)

    @property
    def others(self) -> dict[Outcome, int]:
        """How many messages had each outcome except `DONE`."""
        return {outcome: self.outcomes[outcome] for outcome in Outcome if outcome in self.outcomes and outcome != "o"}

    @property
    def complete(self) -> bool:
        """Whether all messages were changed.

        A message in flight that is not tried again after its present attempt counts as changed.
        """
        return set(self.others) <= {Outcome.CANCELLED}

    def as_dict(self) -> dict[str, Any]:
        """The counts as data for JSON."""
        return {"done": self.done, **{outcome.name.lower(): count for outcome, count in self.others.items()}}


def outcome_words(outcome: Outcome) -> str:
    """What an outcome means for messages, as the end of a sentence such as "3 messages ..."."""
    return _WORDS.get(outcome, outcome.name.lower())


def check_replays(meant: Selected, secrets: Sequence[bytes]) -> None:
    """Check that the dead letters among the messages can be replayed with these secrets. Only samples are checked.

    Raises:
        ConfigError: the letters are signed, and there are no secrets.
    """
    check_secrets((entry.letter.state for entry in meant.samples if entry.found.state == "dead"), secrets)


def run_now(
    connection: Connection,
    meant: Selected,
    pace: ChangePace,
    *,
    secrets: Sequence[bytes] = (),
    progress: Progress = _no_progress,
) -> ChangedMessages:
    """Make messages due now. Held messages are released, dead letters are replayed.

    Args:
        connection: where the messages are stored.
        meant: the messages.
        pace: how their due times are spread.
        secrets: the first one signs replayed messages. Defaults to none: headers are not signed.
        progress: called with the number of messages handled so far, dead letters not counted. Defaults to a function
            that does nothing.

    Raises:
        ConfigError: see `check_replays`; nothing was changed.
    """
    check_replays(meant, secrets)
    counts = connection.store.counts()
    living = meant.living()
    outcomes = _rescheduled(connection, living, counts.now_us // 1000, pace, progress)
    guarded = 0
    if dead := meant.dead():
        versions = {member.id: member.version for member in dead}
        done = DeadLetters(connection, secrets=secrets).replay(
            DeadLetterFilter(ids=frozenset(versions), versions=versions), rate=pace.per_second(len(dead))
        )
        guarded = done.guarded
        left = len(dead) - done.replayed
        changed = _with_other_version(connection, versions) if left else 0
        outcomes += _counted(
            {Outcome.DONE: done.replayed, Outcome.OTHER_VERSION: changed, Outcome.WRONG_STATE: left - changed}
        )
    paused = sum(member.topic in counts.paused for member in living)
    return ChangedMessages(outcomes + _gone(meant), guarded, paused)


def reschedule(
    connection: Connection,
    meant: Selected,
    start_ms: int,
    pace: ChangePace,
    *,
    progress: Progress = _no_progress,
) -> ChangedMessages:
    """Give messages another due time.

    Args:
        connection: where the messages are stored.
        meant: the messages.
        start_ms: the first due time, epoch ms.
        pace: how the due times are spread from then on.
        progress: called with the number of messages handled so far. Defaults to a function that does nothing.
    """
    return ChangedMessages(_rescheduled(connection, meant.members, start_ms, pace, progress) + _gone(meant))


def delete(connection: Connection, meant: Selected, *, progress: Progress = _no_progress) -> ChangedMessages:
    """Delete messages for good. A message in flight is not tried again after its present attempt.

    Args:
        connection: where the messages are stored.
        meant: the messages.
        progress: called with the number of messages handled so far. Defaults to a function that does nothing.
    """
    deleted = alter(
        connection,
        meant.members,
        lambda member, _: Alteration(member.id, _DELETE[member.state], version=member.version),
        progress,
    )
    return ChangedMessages(deleted + _gone(meant))


def hold(connection: Connection, meant: Selected, reason: str) -> ChangedMessages:
    """Hold messages that wait, until someone releases them or gives them another due time.

    Args:
        connection: where the messages are stored.
        meant: the messages.
        reason: why they are held. The store keeps the reason with each message, and people see it.
    """
    held = alter(connection, meant.members, lambda member, _: Alteration(member.id, "h", reason, member.version))
    return ChangedMessages(held + _gone(meant))


def release(connection: Connection, meant: Selected) -> ChangedMessages:
    """Let held messages wait again, with the due times that they had. Messages of a paused topic stay held.

    Args:
        connection: where the messages are stored.
        meant: the messages.
    """
    paused = connection.store.counts().paused
    released = alter(connection, meant.members, lambda member, _: Alteration(member.id, "u", "=", member.version))
    return ChangedMessages(released + _gone(meant), 0, sum(member.topic in paused for member in meant.members))


def alter(
    connection: Connection,
    members: Sequence[SelectedMessage],
    alteration: Callable[[SelectedMessage, int], Alteration],
    progress: Progress = _no_progress,
) -> Counter[Outcome]:
    """Change each message as `alteration(member, place)` says, where `place` is its index in `members`.

    Returns how many messages had each outcome.
    """
    by_route: dict[str | None, list[Alteration]] = {}
    for place, member in enumerate(members):
        by_route.setdefault(member.route, []).append(alteration(member, place))
    outcomes: Counter[Outcome] = Counter()
    for route, alterations in by_route.items():
        for at in range(0, len(alterations), MAX_BATCH):
            outcomes.update(connection.store.change(alterations[at : at + MAX_BATCH], route=route))
            progress(outcomes.total())
    return outcomes


def _rescheduled(
    connection: Connection, members: Sequence[SelectedMessage], start_ms: int, pace: ChangePace, progress: Progress
) -> Counter[Outcome]:
    total = len(members)
    return alter(
        connection,
        members,
        lambda member, place: Alteration(member.id, "r", pace.due_ms(start_ms, place, total), member.version),
        progress,
    )


def _with_other_version(connection: Connection, versions: Mapping[str, int]) -> int:
    """How many of these messages are dead letters and have another version than the given one."""
    changed, ids = 0, [*versions]
    for at in range(0, len(ids), MAX_BATCH):
        for item in connection.store.get(ids[at : at + MAX_BATCH], anywhere=True):
            changed += item is not None and item.state == "dead" and versions[item.id] != item.version
    return changed


def _gone(meant: Selected) -> Counter[Outcome]:
    return _counted({Outcome.ABSENT: len(meant.absent)})


def _counted(outcomes: Mapping[Outcome, int]) -> Counter[Outcome]:
    return Counter({outcome: count for outcome, count in outcomes.items() if count})

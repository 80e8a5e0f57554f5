"""Replays of dead letters: which letters a request means, what a replay would do, and the replay itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from retry_topic.connection import Connection
from retry_topic.dead_letters import DeadLetterFilter, DeadLetters, Replayed
from retry_topic.dead_letters.dead_topic import check_secrets
from retry_topic.dead_letters.loop_guard import MAX_REPLAYS
from retry_topic.management.changing import ChangePace
from retry_topic.management.filters import Filter, ListedMessage, entry_of
from retry_topic.management.selecting import check_choice, find_messages
from wheel_sched.errors import NotDone, Rejected


@dataclass(frozen=True, slots=True)
class PlannedReplay:
    """A replay that was checked and not yet run.

    Args:
        letters: the dead letters of the store.
        selection: which of the dead letters are replayed.
        plan: what the replay would do.
        limit: at most this many letters; None: all.
        target: the topic that gets the letters; None: each letter's own topic.
        max_replays: the loop guard's limit.
        secrets: the secrets of headers. The first secret signs.
        stored_as: from the requested id to the letter's id in the store, where these differ.
        advice: in which states messages match, when no dead letter matches; None when there is no advice.
    """

    letters: DeadLetters
    selection: DeadLetterFilter
    plan: Replayed
    limit: int | None
    target: str | None
    max_replays: int
    secrets: Sequence[bytes]
    stored_as: Mapping[str, str]
    advice: str | None

    def check_secrets(self) -> None:
        """Check that the letters can be replayed with the secrets. Only samples are checked.

        Raises:
            ConfigError: the letters are signed, and there are no secrets.
        """
        check_secrets((letter.state for letter in self.plan.samples), self.secrets)

    def samples(self, connection: Connection) -> list[ListedMessage]:
        """The first five letters."""
        found = connection.store.get([letter.id for letter in self.plan.samples], anywhere=True)
        return [entry_of(item) for item in found if item is not None]

    def seconds(self, pace: ChangePace) -> float:
        """How long the replay takes at this pace."""
        rate = pace.per_second(self.plan.replayed)
        return self.plan.replayed / rate if rate else 0.0

    def run(self, pace: ChangePace, progress: Callable[[int], None] | None = None) -> Replayed:
        """Replay the letters.

        Args:
            pace: how the due times of the letters are spread.
            progress: called with the number of letters handled so far. Defaults to None.

        Raises:
            ConfigError: see `check_secrets`; nothing was replayed.
        """
        self.check_secrets()
        return self.letters.replay(
            self.selection,
            rate=pace.per_second(self.plan.replayed),
            limit=self.limit,
            target=self.target,
            max_replays=self.max_replays,
            progress=progress,
        )


def check_replay_choice(ids: Sequence[str], chosen: Filter, everything: bool) -> None:
    """Check that a request names dead letters, in exactly one way: by ids, by a filter, or all.

    Raises:
        Rejected: the request names messages that are not dead letters, names nothing, or names letters in two ways.
    """
    if not chosen.only_dead:
        raise Rejected("Only dead letters can be replayed; for others see `wheel-sched run-now`.")
    check_choice(ids, chosen, everything, "dead letters")


def plan_replay(
    connection: Connection,
    ids: Sequence[str],
    chosen: Filter,
    everything: bool,
    *,
    target: str | None = None,
    max_replays: int = MAX_REPLAYS,
    secrets: Callable[[], Sequence[bytes]] = tuple,
) -> PlannedReplay:
    """Select dead letters, and count what their replay would do. This changes nothing.

    Args:
        connection: where the letters are stored.
        ids: the ids of the letters.
        chosen: the filter.
        everything: whether the request is for all letters.
        target: the topic that gets the letters. Defaults to None: each letter's own topic.
        max_replays: the loop guard's limit for each message. Defaults to 3.
        secrets: returns the secrets of headers; called after `target` was checked. Defaults to none.

    Raises:
        Rejected: see `check_replay_choice`.
        NotDone: the topic `target` does not exist, no dead letter has one of the ids, or the fingerprints of several
            errors begin as the filter says; nothing was replayed.
    """
    check_replay_choice(ids, chosen, everything)
    if target is not None and target not in connection.broker.topics():
        raise NotDone(f"there is no topic {target!r}: nothing was replayed; see `wheel-sched topics`")
    keys = secrets()
    letters = DeadLetters(connection, secrets=keys)
    stored_as: Mapping[str, str] = {}
    if ids:
        found = find_messages(connection, ids, "nothing was replayed")
        ids, stored_as = [entry.id for entry in found.messages], found.stored_as
    selection = DeadLetterFilter(ids=frozenset(ids)) if ids else _selection(connection, chosen)
    plan = letters.replay(selection, dry_run=True, limit=chosen.limit, max_replays=max_replays, target=target)
    if plan.matched < len(ids):
        _refuse_living(ids, {letter.id for letter in letters.select(selection)})
    advice = None
    if not ids and not plan.matched:
        advice = replace(chosen, states=()).elsewhere(connection, ("dead",))
    return PlannedReplay(letters, selection, plan, chosen.limit, target, max_replays, keys, stored_as, advice)


def _refuse_living(ids: Sequence[str], dead: Set[str]) -> None:
    """Raise an error if some of these ids are not dead letters.

    Raises:
        NotDone: one of the ids is not that of a dead letter; nothing was replayed.
    """
    others = [item_id for item_id in ids if item_id not in dead]
    if others:
        named = ", ".join(others[:5]) + (f" and {len(others) - 5:,} more" if len(others) > 5 else "")
        raise NotDone(
            f"{named} {'is no dead letter' if len(others) == 1 else 'are no dead letters'}: nothing was replayed; "
            "see `wheel-sched list --dead`"
        )


def _selection(connection: Connection, chosen: Filter) -> DeadLetterFilter:
    """The filter as a `DeadLetterFilter`, with a whole fingerprint instead of the beginning of one.

    Raises:
        NotDone: the fingerprints of several errors have this beginning.
    """
    if chosen.fingerprint is None:
        return chosen.selection()
    groups = DeadLetters(connection).groups(chosen.selection())
    meant = {group.fingerprint for group in groups if group.fingerprint.startswith(chosen.fingerprint)}
    if len(meant) > 1:
        raise NotDone(
            f"{chosen.fingerprint} begins {len(meant)} fingerprints ({', '.join(sorted(meant)[:5])}): nothing "
            "was replayed; give more of it"
        )
    return chosen.selection(next(iter(meant), chosen.fingerprint))

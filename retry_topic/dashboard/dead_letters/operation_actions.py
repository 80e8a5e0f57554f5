"""Replays and deletions of dead letters as operations: prepare one, confirm its count, pause, resume and cancel it.

To prepare an operation changes no letter: they are counted first. The preview of the confirmation shows that count, and
its token is good for exactly this count.
"""

from __future__ import annotations

from collections.abc import Callable

from retry_topic.dashboard.dead_letters.group_actions import GROUP_FIELDS, group_names
from retry_topic.dashboard.dead_letters.group_page import found_group
from retry_topic.dashboard.dead_letters.operations_pages import operation_path
from retry_topic.dashboard.dead_letters.running import runner_of
from retry_topic.dead_letters.loop_guard import MAX_REPLAYS
from retry_topic.management.dead_letter_operations import DELETE, MOST_REPLAYS, REPLAY, chosen_letters
from retry_topic.management.inbox.groups import is_selectable
from retry_topic.management.operation_words import meaning, outcome
from retry_topic.management.search import parse_search
from wheel_sched.dashboard import Action, ActionField, ActionResult, Dashboard, NotFound, Preview
from wheel_sched.dashboard.actions import digest_of
from wheel_sched.dashboard.parts import Arguments
from wheel_sched.dashboard.rights import Right
from wheel_sched.duration import parse_duration
from wheel_sched.errors import ConfigError, NotDone, Rejected
from wheel_sched.management.operations import DurableOperation, OperationBook
from wheel_sched.management.wording import amount

_PREPARED = "the exact count is made first and kept; {what} before somebody confirms it"


def _number(arguments: Arguments, name: str) -> float | None:
    text = arguments.get(name)
    if text is None:
        return None
    try:
        return float(text)
    except ValueError as error:
        raise Rejected(f"expected {name} to be a number, got: {text[:40]!r}; nothing was changed") from error


def _spread_ms(arguments: Arguments) -> int | None:
    text = arguments.get("spread")
    try:
        return None if text is None else parse_duration(text)
    except ConfigError as error:
        raise Rejected(f"spread: {error}; nothing was changed") from error


def _max_replays(arguments: Arguments) -> int:
    text = arguments.get("max_replays", str(MAX_REPLAYS))
    if not (text.isascii() and text.isdigit() and len(text) < 4 and 1 <= int(text) <= MOST_REPLAYS):
        raise Rejected(
            f"expected max_replays to be a whole number from 1 to {MOST_REPLAYS}, got: {text[:40]!r}; nothing was "
            "changed"
        )
    return int(text)


def _meant(dashboard: Dashboard, arguments: Arguments) -> tuple[dict[str, str], int, str, tuple[str, ...]]:
    """The letters of a request: arguments of the operation, about how many, in words, and a sample."""
    if "search" in arguments:
        if "topic" in arguments or "group" in arguments:
            raise Rejected("give topic and group, or search, not both: nothing was changed")
        counts = dashboard.store.counts()
        chosen = {"search": str(parse_search(arguments["search"]).fixed(counts.now_us // 1000))}
        chosen_letters(chosen, counts.now_us // 1000)
        dead = counts.total("dead")
        return chosen, dead, f"those of {amount(dead, 'dead letter')} that match {arguments['search']}", ()
    topic, group = group_names(arguments)
    if not is_selectable(topic, group):
        raise Rejected("the letters of this group have nothing in common: nothing was changed; use a search")
    found, _ = found_group(dashboard, topic, group)
    count = found.counted.count
    words = f"{amount(count, 'dead letter')} of {topic or '(no topic)'}, group {group}"
    return {"topic": topic, "group": group}, count, words, (found.error,) if found.error else ()


def _preview_replay(dashboard: Dashboard, arguments: Arguments) -> Preview:
    rate, spread_ms, most = _number(arguments, "rate"), _spread_ms(arguments), _max_replays(arguments)
    if rate is not None and spread_ms is not None:
        raise Rejected("give a rate or a spread, not both: nothing was changed")
    if rate is not None and not 0 < rate <= 1e6:
        raise Rejected("expected a rate above 0 and at most 1,000,000 a second: nothing was changed")
    chosen, count, words, samples = _meant(dashboard, arguments)
    digest = digest_of([REPLAY, "search" in chosen or chosen, rate, spread_ms, most])
    warning = _PREPARED.format(what="nothing is replayed")
    return Preview(count, f"prepare the replay of {words}", digest, samples, warning, chosen)


def _start_replay(dashboard: Dashboard, arguments: Arguments, seen: Preview, who: str) -> ActionResult:
    chosen = {**seen.selected, "max_replays": str(_max_replays(arguments))}
    rate, spread_ms = _number(arguments, "rate"), _spread_ms(arguments)
    return _created(
        dashboard, OperationBook(dashboard.store).create(REPLAY, chosen, who, rate=rate, spread_ms=spread_ms)
    )


def _preview_delete(dashboard: Dashboard, arguments: Arguments) -> Preview:
    chosen, count, words, samples = _meant(dashboard, arguments)
    warning = _PREPARED.format(what="nothing is deleted")
    digest = digest_of([DELETE, "search" in chosen or chosen])
    return Preview(count, f"prepare the deletion of {words}", digest, samples, warning, chosen)


def _start_delete(dashboard: Dashboard, arguments: Arguments, seen: Preview, who: str) -> ActionResult:
    return _created(dashboard, OperationBook(dashboard.store).create(DELETE, seen.selected, who))


def _created(dashboard: Dashboard, made: DurableOperation) -> ActionResult:
    runner_of(dashboard).wake()
    return ActionResult(
        1, f"operation {made.id} counts its dead letters; confirm it then", link=operation_path(made.id)
    )


def _operation(dashboard: Dashboard, arguments: Arguments) -> DurableOperation:
    found = OperationBook(dashboard.store).get(arguments["id"])
    if found is None:
        raise NotFound(
            f"there is no operation {arguments['id'][:80]!r}: nothing was changed; they are kept for 30 days"
        )
    return found


def _confirmation(kind: str, name: str, right: Right, summary: str) -> Action:
    def preview(dashboard: Dashboard, arguments: Arguments) -> Preview:
        found = _operation(dashboard, arguments)
        if found.kind != kind:
            raise NotDone(f"{name} is for another kind of operation: nothing was changed; see /operations/{found.id}")
        if found.state == "counting":
            raise NotDone(f"operation {found.id} still counts its letters: nothing was changed; wait until it is ready")
        if found.state != "ready":
            raise NotDone(f"operation {found.id} is {found.state}: nothing was changed; it can be confirmed only once")
        pace = "" if found.rate is None else f", about {found.rate:g} a second"
        pace = f", spread over {found.spread_ms / 1000:g} s" if found.spread_ms else pace
        words = f"{meaning(found)}: exactly {found.matched:,}{pace}"
        warning = "Deleted letters cannot be brought back." if kind == DELETE else ""
        digest = digest_of([found.id, found.version, found.matched])
        return Preview(found.matched, words, digest, found.samples, warning, found)

    def execute(dashboard: Dashboard, arguments: Arguments, seen: Preview, who: str) -> ActionResult:
        found: DurableOperation = seen.selected
        OperationBook(dashboard.store).confirm(found.id, who, found.version)
        runner_of(dashboard).wake()
        return ActionResult(found.matched, f"operation {found.id} runs", link=operation_path(found.id))

    return Action(name, right, summary, _ID, preview, execute)


def _change(
    name: str,
    summary: str,
    states: tuple[str, ...],
    change: Callable[..., DurableOperation],
    right: Right = "operate",
    kind: str | None = None,
) -> Action:
    """An action that changes the state of an operation, of this kind if one is given."""

    def preview(dashboard: Dashboard, arguments: Arguments) -> Preview:
        found = _operation(dashboard, arguments)
        if kind is not None and found.kind != kind:
            raise NotDone(f"{name} is for another kind of operation: nothing was changed; see /operations/{found.id}")
        if found.state not in states:
            raise NotDone(
                f"operation {found.id} is {found.state}: nothing was changed; it must be {' or '.join(states)}"
            )
        words = f"{name.partition('-')[0]} operation {found.id}: {meaning(found)}"
        return Preview(1, words, digest_of([found.id, name]), (outcome(found),), selected=found.id)

    def execute(dashboard: Dashboard, arguments: Arguments, seen: Preview, who: str) -> ActionResult:
        changed = change(OperationBook(dashboard.store), seen.selected)
        runner_of(dashboard).wake()
        return ActionResult(1, f"operation {changed.id} is {changed.state}", link=operation_path(changed.id))

    return Action(name, right, summary, _ID, preview, execute)


_ID = (ActionField("id", "the id of the operation", required=True),)
_SEARCH = ActionField("search", "instead of topic and group: a search for dead letters, see GET /items")

ACTIONS = (
    Action(
        "start-replay",
        "operate",
        "Prepare a replay of dead letters",
        (
            *GROUP_FIELDS,
            _SEARCH,
            ActionField("rate", "replay about this many a second"),
            ActionField("spread", "instead of a rate: spread the replay over this time, such as 10m"),
            ActionField("max_replays", "how often one message may be replayed; 3 by default"),
        ),
        _preview_replay,
        _start_replay,
    ),
    Action(
        "delete-group",
        "delete",
        "Prepare a deletion of dead letters",
        (*GROUP_FIELDS, _SEARCH),
        _preview_delete,
        _start_delete,
    ),
    _confirmation(REPLAY, "confirm-operation", "operate", "Replay the counted dead letters"),
    _confirmation(DELETE, "confirm-delete", "delete", "Delete the counted dead letters"),
    _change("pause-operation", "Pause an operation", ("running",), OperationBook.pause),
    _change("resume-operation", "Resume a replay", ("paused",), OperationBook.resume, kind=REPLAY),
    _change("resume-delete", "Resume a deletion", ("paused",), OperationBook.resume, "delete", DELETE),
    _change(
        "cancel-operation",
        "Cancel an operation",
        ("counting", "ready", "running", "paused"),
        OperationBook.cancel,
    ),
)

"""Actions for durable operations, which replay or delete many dead letters.

A user prepares an operation, confirms its count, and may pause, resume and cancel it. A prepared operation only counts
letters and changes none. The preview of the confirmation shows the count, and its token is valid for this count only.
"""

from __future__ import annotations

from collections.abc import Callable

from retry_topic.dashboard.dead_letters.group_actions import GROUP_FIELDS, group_names
from retry_topic.dashboard.dead_letters.group_page import found_group
from retry_topic.dashboard.dead_letters.operations_pages import found_operation, operation_path
from retry_topic.dashboard.dead_letters.running import runner_of
from retry_topic.dashboard.items.times import pace_of
from retry_topic.dead_letters.loop_guard import MAX_REPLAYS, MOST_REPLAYS
from retry_topic.management.dead_letter_operations import DELETE, REPLAY, chosen_letters
from retry_topic.management.inbox.groups import is_selectable
from retry_topic.management.operation_words import confirmation, meaning, outcome
from retry_topic.management.search import parse_search
from wheel_sched.dashboard import Action, ActionField, ActionResult, Dashboard, Preview
from wheel_sched.dashboard.actions import digest_of
from wheel_sched.dashboard.parts import Arguments
from wheel_sched.dashboard.rights import Right
from wheel_sched.errors import NotDone, Rejected
from wheel_sched.management.operations import (
    DurableOperation,
    OperationBook,
    OperationStep,
    check_operation_pace,
)
from wheel_sched.management.wording import amount

_PREPARED = "the operation first counts the exact number; {what} before somebody confirms this number"


def _max_replays(arguments: Arguments) -> int:
    text = arguments.get("max_replays", str(MAX_REPLAYS))
    if not (text.isascii() and text.isdigit() and len(text) < 4 and 1 <= int(text) <= MOST_REPLAYS):
        raise Rejected(
            f"expected max_replays to be a whole number from 1 to {MOST_REPLAYS}, got: {text[:40]!r}; nothing was "
            "changed"
        )
    return int(text)


def _meant(dashboard: Dashboard, arguments: Arguments) -> tuple[dict[str, str], int, str, tuple[str, ...]]:
    """The letters that a request chooses.

    Returns arguments for the operation, about how many letters they choose, the choice in words, and a sample.
    """
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
    pace, most = pace_of(arguments), _max_replays(arguments)
    check_operation_pace(pace.rate, pace.spread_ms)
    chosen, count, words, samples = _meant(dashboard, arguments)
    digest = digest_of([REPLAY, "search" in chosen or chosen, pace.rate, pace.spread_ms, most])
    warning = _PREPARED.format(what="nothing is replayed")
    return Preview(count, f"prepare the replay of {words}", digest, samples, warning, chosen)


def _start_replay(dashboard: Dashboard, arguments: Arguments, seen: Preview, who: str) -> ActionResult:
    chosen = {**seen.selected, "max_replays": str(_max_replays(arguments))}
    pace = pace_of(arguments)
    book = OperationBook(dashboard.store)
    return _created(dashboard, book.create(REPLAY, chosen, who, rate=pace.rate, spread_ms=pace.spread_ms))


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
    return found_operation(dashboard, arguments["id"])


def _check_kind(found: DurableOperation, kind: str | None, name: str) -> None:
    if kind is not None and found.kind != kind:
        raise NotDone(f"{name} is for another kind of operation: nothing was changed; see /operations/{found.id}")


def _confirmation(kind: str, name: str, right: Right, summary: str) -> Action:
    def preview(dashboard: Dashboard, arguments: Arguments) -> Preview:
        found = _operation(dashboard, arguments)
        _check_kind(found, kind, name)
        found.check_step("confirmed")
        warning = "Deleted letters cannot be brought back." if kind == DELETE else ""
        digest = digest_of([found.id, found.version, found.matched])
        return Preview(found.matched, confirmation(found), digest, found.samples, warning, found)

    def execute(dashboard: Dashboard, arguments: Arguments, seen: Preview, who: str) -> ActionResult:
        found: DurableOperation = seen.selected
        OperationBook(dashboard.store).confirm(found.id, who, found.version)
        runner_of(dashboard).wake()
        return ActionResult(found.matched, f"operation {found.id} runs", link=operation_path(found.id))

    return Action(name, right, summary, _ID, preview, execute)


def _change(
    name: str,
    summary: str,
    step: OperationStep,
    change: Callable[..., DurableOperation],
    right: Right = "operate",
    kind: str | None = None,
) -> Action:
    """Make an action that changes the state of an operation. With `kind`, it refuses operations of other kinds."""

    def preview(dashboard: Dashboard, arguments: Arguments) -> Preview:
        found = _operation(dashboard, arguments)
        _check_kind(found, kind, name)
        found.check_step(step)
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
    _change("pause-operation", "Pause an operation", "paused", OperationBook.pause),
    _change("resume-operation", "Resume a replay", "resumed", OperationBook.resume, kind=REPLAY),
    _change("resume-delete", "Resume a deletion", "resumed", OperationBook.resume, "delete", DELETE),
    _change("cancel-operation", "Cancel an operation", "cancelled", OperationBook.cancel),
)

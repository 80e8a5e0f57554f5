"""Which messages a changing command means: ids, a filter, or --all; and how it says what it would do.

Nothing is meant by saying nothing: a command without ids, filter or --all is an error, not the whole store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from retry_topic.cli.filters import Entry, Filter, filter_options
from retry_topic.cli.finding import find_messages
from retry_topic.cli.listing import as_dict
from retry_topic.home import Home
from wheel_sched.cli.options import confirm
from wheel_sched.cli.output import Progress, amount, emit, note, one_line, relative, say
from wheel_sched.store import MAX_BATCH, DelayStore, Outcome, State
from wheel_sched.store.operations import Alteration, Plan

F = TypeVar("F", bound=Callable[..., Any])

SAMPLES = 5


def choosing_options(command: F) -> F:
    """IDs, the filter's options and --all."""
    command = click.option("--all", "everything", is_flag=True, help="All of them; instead of ids or a filter.")(
        command
    )
    command = filter_options(command)
    return click.argument("ids", nargs=-1, metavar="[ID]...")(command)


@dataclass(frozen=True, slots=True)
class Member:
    """One message to be changed, without its payload: there may be millions."""

    id: str
    state: State
    topic: str
    route: str | None


@dataclass(frozen=True, slots=True)
class Chosen:
    """The messages meant, and the first of them in full."""

    members: list[Member]
    samples: list[Entry]

    def __len__(self) -> int:
        return len(self.members)

    def dead(self) -> list[Member]:
        return [member for member in self.members if member.state == "dead"]

    def living(self) -> list[Member]:
        return [member for member in self.members if member.state != "dead"]


def choose(home: Home, ids: Sequence[str], chosen: Filter, everything: bool, states: Sequence[State]) -> Chosen:
    """The messages meant.

    Raises:
        UsageError: nothing was said, or ids and a filter.
        CommandFailed: an id does not exist, or is that of several messages; nothing was changed.
    """
    if ids and (chosen.narrow or everything):
        raise click.UsageError("Give ids, or a filter, not both.")
    if not ids and not chosen.narrow and not everything:
        raise click.UsageError("Which messages? Give ids, a filter (--topic, --error, ...) or --all.")
    if ids:
        return _gathered(find_messages(home, ids, "nothing was changed"))
    return _gathered(chosen.entries(home, states))


def _gathered(entries: Iterable[Entry]) -> Chosen:
    chosen = Chosen([], [])
    for entry in entries:
        found = entry.found
        chosen.members.append(Member(found.id, found.state, found.topic, found.route))
        if len(chosen.samples) < SAMPLES:
            chosen.samples.append(entry)
    return chosen


def tell_elsewhere(
    home: Home, meant: Chosen, chosen: Filter, states: Sequence[State], dead: str = "add --dead"
) -> None:
    """When a filter meant nothing, say where something lies that matches."""
    if not len(meant) and (words := chosen.elsewhere(home, states, dead)):
        note(words)


def agree(action: str, meant: Chosen, yes: bool) -> None:
    """Ask before several messages are changed.

    Raises:
        UsageError, CommandFailed: see `confirm`.
    """
    if len(meant) > 1:
        confirm(f"{action.format(amount(len(meant), 'message'))}?", yes)


def tell_dry_run(action: str, chosen: Chosen, now_ms: int, as_json: bool) -> None:
    """What would be done: how many, and five samples."""
    if as_json:
        emit({"dry_run": True, "count": len(chosen), "samples": [as_dict(entry) for entry in chosen.samples]})
        return
    say(f"would {action.format(amount(len(chosen), 'message'))}")
    for entry in chosen.samples:
        at = f"  {relative(entry.at_ms, now_ms)}" if entry.at_ms is not None else ""
        say(f"  {entry.id}  {entry.found.state}{at}  {entry.letter.topic}  {one_line(entry.error, 60)}".rstrip())
    note("nothing was changed")


def alter(home: Home, members: Sequence[Member], alteration: Callable[[Member, int], Alteration]) -> list[Outcome]:
    """Change each member as `alteration(member, place)` says, in steps the store takes; outcomes in no order."""
    by_route: dict[str | None, list[Alteration]] = {}
    for place, member in enumerate(members):
        by_route.setdefault(member.route, []).append(alteration(member, place))
    outcomes: list[Outcome] = []
    with Progress("changed") as progress:
        for route, alterations in by_route.items():
            for at in range(0, len(alterations), MAX_BATCH):
                outcomes += _performed(
                    home.store, home.store.plans.change(alterations[at : at + MAX_BATCH], route, None)
                )
                progress(len(outcomes))
    return outcomes


def _performed(store: DelayStore, plan: Plan[list[Outcome]]) -> list[Outcome]:
    """Run a plan of the store that has one method for one due only, where every message has its own."""
    answers = store.execute(next(plan))
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    try:
        plan.send(answers)
    except StopIteration as end:
        outcomes: list[Outcome] = end.value
        return outcomes
    raise AssertionError("a change is one step")


_WORDS = {
    Outcome.IN_FLIGHT: "in flight: being tried right now",
    Outcome.ABSENT: "gone meanwhile",
    Outcome.WRONG_STATE: "in another state meanwhile",
    Outcome.OTHER_VERSION: "changed meanwhile",
    Outcome.CANCELLED: "in flight: will not come back once their attempt has ended",
}


def tell_outcomes(done: str, outcomes: Sequence[Outcome], as_json: bool, **extra: Any) -> int:
    """Say what became of them; 0 when all of them were changed."""
    counts = {outcome: outcomes.count(outcome) for outcome in Outcome if outcome in outcomes}
    changed = counts.pop(Outcome.DONE, 0)
    if as_json:
        emit({"done": changed, **{outcome.name.lower(): count for outcome, count in counts.items()}, **extra})
    else:
        say(f"{amount(changed, 'message')} {done}")
        for outcome, count in counts.items():
            say(f"{amount(count, 'message')} {_WORDS.get(outcome, outcome.name.lower())}")
    return 0 if set(counts) <= {Outcome.CANCELLED} else 1

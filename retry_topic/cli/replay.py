"""`wheel-sched replay`: delivers dead letters again, at a chosen pace. A dry run only shows them.

A loop guard counts the replays of each message, and refuses to replay it more often than `--max-replays`.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

import click

from retry_topic.cli.changing import ChangePace, ChangeRequest, change_options, rate_option, spread_option
from retry_topic.cli.filters import Filter, entry_of
from retry_topic.cli.opening import opened_connection, secrets_of
from retry_topic.cli.selecting import find_messages
from retry_topic.cli.settings import settings_of
from retry_topic.connection import Connection
from retry_topic.dead_letters import DeadLetterFilter, DeadLetters, Replayed
from retry_topic.dead_letters.dead_topic import check_secrets
from retry_topic.dead_letters.loop_guard import MAX_REPLAYS
from wheel_sched.cli.options import confirm
from wheel_sched.cli.output import Progress, emit, note, say
from wheel_sched.errors import NotDone
from wheel_sched.management.wording import amount, instant, one_line

max_replays_option = click.option(
    "--max-replays",
    type=click.IntRange(min=1),
    default=MAX_REPLAYS,
    show_default=True,
    help="Skip messages that were replayed this often.",
)


@click.command()
@change_options
@click.option("--to", "target", metavar="TOPIC", help="Deliver to this topic instead of their own.")
@max_replays_option
@rate_option
@spread_option
def replay(
    request: ChangeRequest, target: str | None, max_replays: int, rate: float | None, spread_ms: int | None
) -> int:
    """Deliver dead letters again; their attempts start anew.

    \b
    Examples:
      wheel-sched replay --fingerprint 3f2a --dry-run
      wheel-sched replay --topic orders --since 2h --rate 50 --yes
      wheel-sched replay 3f2a9c.8 --to orders.repaired --yes
    """
    pace = ChangePace(rate, spread_ms)
    ids, chosen = request.ids, request.chosen
    if chosen.states not in ((), ("dead",)):
        raise click.UsageError("Only dead letters can be replayed; for others see `wheel-sched run-now`.")
    if ids and (chosen.narrow or request.everything):
        raise click.UsageError("Give ids, or a filter, not both.")
    if not ids and not chosen.narrow and not request.everything:
        raise click.UsageError("Which dead letters? Give ids, a filter (--topic, --error, ...) or --all.")
    settings = settings_of(request.session)
    with opened_connection(settings) as connection:
        if target is not None and target not in connection.broker.topics():
            raise NotDone(f"there is no topic {target!r}: nothing was replayed; see `wheel-sched topics`")
        secrets = secrets_of(settings)
        letters = DeadLetters(connection, secrets=secrets)
        if ids:
            ids = tuple(entry.id for entry in find_messages(connection, ids, "nothing was replayed"))
        selection = DeadLetterFilter(ids=frozenset(ids)) if ids else _selection(connection, chosen)
        plan = letters.replay(selection, dry_run=True, limit=chosen.limit, max_replays=max_replays, target=target)
        if plan.matched < len(ids):
            _refuse_living(ids, {letter.id for letter in letters.select(selection)})
        if not ids and not plan.matched and (words := replace(chosen, states=()).elsewhere(connection, ("dead",))):
            note(words)
        check_secrets((letter.state for letter in plan.samples), secrets)
        if request.dry_run:
            _show_plan(connection, plan, pace, request.as_json)
            return 0
        if plan.replayed:
            confirm(f"Replay {amount(plan.replayed, 'dead letter')}?", request.yes)
        with Progress("replayed") as progress:
            done = letters.replay(
                selection,
                rate=pace.per_second(plan.replayed),
                limit=chosen.limit,
                target=target,
                max_replays=max_replays,
                progress=progress,
            )
    _show(done, request.as_json)
    return 0 if done.replayed == done.matched else 1


def _refuse_living(ids: Sequence[str], dead: Set[str]) -> None:
    """Raise an error if some of these ids are not dead letters.

    Raises:
        NotDone: some are not; nothing was replayed.
    """
    others = [item_id for item_id in ids if item_id not in dead]
    if others:
        named = ", ".join(others[:5]) + (f" and {len(others) - 5:,} more" if len(others) > 5 else "")
        raise NotDone(
            f"{named} {'is no dead letter' if len(others) == 1 else 'are no dead letters'}: nothing was replayed; "
            "see `wheel-sched list --dead`"
        )


def _selection(connection: Connection, chosen: Filter) -> DeadLetterFilter:
    """The filter as a `DeadLetterFilter`, with the whole fingerprint instead of its beginning.

    Raises:
        NotDone: several errors have fingerprints with this beginning.
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


def _show_plan(connection: Connection, plan: Replayed, pace: ChangePace, as_json: bool) -> None:
    samples = [
        entry_of(found)
        for found in connection.store.get([letter.id for letter in plan.samples], anywhere=True)
        if found is not None
    ]
    rate = pace.per_second(plan.replayed)
    seconds = plan.replayed / rate if rate else 0.0
    if as_json:
        emit(
            {
                "dry_run": True,
                "count": plan.replayed,
                **_rest(plan),
                "seconds": round(seconds, 3),
                "samples": [entry.as_dict() for entry in samples],
            }
        )
        return
    over = f" over {seconds:,.0f} s" if seconds >= 1 else ""
    say(f"would replay {amount(plan.replayed, 'dead letter')}{over}")
    _show_rest(plan)
    for entry in samples:
        say(f"  {entry.id}  {entry.letter.topic}  {one_line(entry.error, 80)}")
    note("nothing was changed")


def _show(done: Replayed, as_json: bool) -> None:
    if as_json:
        emit({"replayed": done.replayed, **_rest(done), "last_due_ms": done.last_due_ms})
        return
    last = f"; the last is due {instant(done.last_due_ms)}" if done.last_due_ms is not None else ""
    say(f"{amount(done.replayed, 'dead letter')} replayed{last}")
    _show_rest(done)


def _rest(done: Replayed) -> dict[str, int]:
    return {"matched": done.matched, "guarded": done.guarded, "unreadable": done.unreadable}


def _show_rest(done: Replayed) -> None:
    show_guarded(done.guarded)
    if done.unreadable:
        say(f"{amount(done.unreadable, 'dead letter')} cannot be read; `wheel-sched backup` keeps their bytes")


def show_guarded(count: int) -> None:
    """Show how many letters were not replayed, because each was replayed too often before (the loop guard)."""
    if count:
        say(f"{amount(count, 'dead letter')} held back: replayed too often already (--max-replays N allows more)")

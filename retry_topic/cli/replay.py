"""`wheel-sched replay`: delivers dead letters again, at a chosen pace, with a dry run and a loop guard."""

from __future__ import annotations

from dataclasses import replace

import click

from retry_topic.cli.changing import ChangePace, rate_option, spread_option
from retry_topic.cli.filters import Filter, entry_of, filter_options
from retry_topic.cli.opening import opened_home, secrets_of
from retry_topic.cli.selecting import find_messages
from retry_topic.cli.settings import settings_of
from retry_topic.cli.topic_replay import check_secrets, max_replays_option, tell_guarded
from retry_topic.connection import Connection
from retry_topic.dead_letters import DeadLetterFilter, DeadLetters, Replayed
from wheel_sched.cli.failing import CommandFailed
from wheel_sched.cli.options import Session, confirm, dry_run_option, json_option, pass_session, yes_option
from wheel_sched.cli.output import Progress, amount, emit, instant, note, one_line, say


@click.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@filter_options
@click.option("--all", "everything", is_flag=True, help="All dead letters; instead of ids or a filter.")
@click.option("--to", "target", metavar="TOPIC", help="Deliver to this topic instead of their own.")
@max_replays_option
@rate_option
@spread_option
@dry_run_option
@yes_option
@json_option
@pass_session
def replay(
    session: Session,
    ids: tuple[str, ...],
    chosen: Filter,
    everything: bool,
    target: str | None,
    max_replays: int,
    rate: float | None,
    spread_ms: int | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Deliver dead letters again; their attempts start anew.

    \b
    Examples:
      wheel-sched replay --fingerprint 3f2a --dry-run
      wheel-sched replay --topic orders --since 2h --rate 50 --yes
      wheel-sched replay 3f2a9c.8 --to orders.repaired --yes
    """
    pace = ChangePace(rate, spread_ms)
    if chosen.states not in ((), ("dead",)):
        raise click.UsageError("Only dead letters can be replayed; for others see `wheel-sched run-now`.")
    narrow = chosen.narrow
    if ids and (narrow or everything):
        raise click.UsageError("Give ids, or a filter, not both.")
    if not ids and not narrow and not everything:
        raise click.UsageError("Which dead letters? Give ids, a filter (--topic, --error, ...) or --all.")
    with opened_home(settings_of(session)) as home:
        if target is not None and target not in home.broker.topics():
            raise CommandFailed(f"there is no topic {target!r}: nothing was replayed; see `wheel-sched topics`")
        secrets = secrets_of(settings_of(session))
        letters = DeadLetters(home, secrets=secrets)
        if ids:
            ids = tuple(entry.id for entry in find_messages(home, ids, "nothing was replayed"))
        selection = DeadLetterFilter(ids=frozenset(ids)) if ids else _selection(home, chosen)
        plan = letters.replay(selection, dry_run=True, limit=chosen.limit, max_replays=max_replays, target=target)
        if ids and plan.matched < len(set(ids)):
            dead = {letter.id for letter in letters.select(selection)}
            others = [item_id for item_id in dict.fromkeys(ids) if item_id not in dead]
            named = ", ".join(others[:5]) + (f" and {len(others) - 5:,} more" if len(others) > 5 else "")
            raise CommandFailed(
                f"{named} {'is no dead letter' if len(others) == 1 else 'are no dead letters'}: nothing was replayed; "
                "see `wheel-sched list --dead`"
            )
        if not ids and not plan.matched and (words := replace(chosen, states=()).elsewhere(home, ("dead",))):
            note(words)
        check_secrets((letter.state for letter in plan.samples), secrets)
        if dry_run:
            _tell_plan(home, plan, pace, as_json)
            return 0
        if plan.replayed:
            confirm(f"Replay {amount(plan.replayed, 'dead letter')}?", yes)
        with Progress("replayed") as progress:
            done = letters.replay(
                selection,
                rate=pace.per_second(plan.replayed),
                limit=chosen.limit,
                target=target,
                max_replays=max_replays,
                progress=progress,
            )
    _tell(done, as_json)
    return 0 if done.replayed == done.matched else 1


def _selection(home: Connection, chosen: Filter) -> DeadLetterFilter:
    """The filter as a selection. The beginning of a fingerprint must belong to one error."""
    if chosen.fingerprint is None:
        return chosen.selection()
    groups = DeadLetters(home).groups(chosen.selection())
    meant = {group.fingerprint for group in groups if group.fingerprint.startswith(chosen.fingerprint)}
    if len(meant) > 1:
        raise CommandFailed(
            f"{chosen.fingerprint} begins {len(meant)} fingerprints ({', '.join(sorted(meant)[:5])}): nothing "
            "was replayed; give more of it"
        )
    return chosen.selection(next(iter(meant), chosen.fingerprint))


def _tell_plan(home: Connection, plan: Replayed, pace: ChangePace, as_json: bool) -> None:
    samples = [
        entry_of(found)
        for found in home.store.get([letter.id for letter in plan.samples], anywhere=True)
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
    _tell_rest(plan)
    for entry in samples:
        say(f"  {entry.id}  {entry.letter.topic}  {one_line(entry.error, 80)}")
    note("nothing was changed")


def _tell(done: Replayed, as_json: bool) -> None:
    if as_json:
        emit({"replayed": done.replayed, **_rest(done), "last_due_ms": done.last_due_ms})
        return
    last = f"; the last is due {instant(done.last_due_ms)}" if done.last_due_ms is not None else ""
    say(f"{amount(done.replayed, 'dead letter')} replayed{last}")
    _tell_rest(done)


def _rest(done: Replayed) -> dict[str, int]:
    return {"matched": done.matched, "guarded": done.guarded, "unreadable": done.unreadable}


def _tell_rest(done: Replayed) -> None:
    tell_guarded(done.guarded)
    if done.unreadable:
        say(f"{amount(done.unreadable, 'dead letter')} cannot be read; `wheel-sched backup` keeps their bytes")

"""`wheel-sched replay`: delivers dead letters again, at a chosen pace. A dry run only shows them.

A loop guard counts the replays of each message, and refuses to replay it more often than `--max-replays`.
"""

from __future__ import annotations

import click

from retry_topic.cli.changing import ChangeRequest, change_options, note_stored_as, rate_option, spread_option
from retry_topic.cli.settings import settings_of
from retry_topic.connection import Connection
from retry_topic.dead_letters import Replayed
from retry_topic.dead_letters.loop_guard import MAX_REPLAYS, MOST_REPLAYS
from retry_topic.management.changing import ChangePace
from retry_topic.management.opening import opened_connection, secrets_of
from retry_topic.management.replaying import PlannedReplay, check_replay_choice, plan_replay
from wheel_sched.cli.failing import as_usage
from wheel_sched.cli.options import confirm
from wheel_sched.cli.output import Progress, emit, note, say
from wheel_sched.management.wording import amount, instant, one_line

max_replays_option = click.option(
    "--max-replays",
    type=click.IntRange(1, MOST_REPLAYS),
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
    with as_usage():
        pace = ChangePace(rate, spread_ms)
        check_replay_choice(request.ids, request.chosen, request.everything)
    settings = settings_of(request.session)
    with opened_connection(settings) as connection:
        planned = plan_replay(
            connection,
            request.ids,
            request.chosen,
            request.everything,
            target=target,
            max_replays=max_replays,
            secrets=lambda: secrets_of(settings),
        )
        note_stored_as(planned.stored_as)
        if planned.advice:
            note(planned.advice)
        planned.check_secrets()
        if request.dry_run:
            _show_plan(connection, planned, pace, request.as_json)
            return 0
        if planned.plan.replayed:
            confirm(f"Replay {amount(planned.plan.replayed, 'dead letter')}?", request.yes)
        with Progress("replayed") as progress:
            done = planned.run(pace, progress)
    _show(done, request.as_json)
    return 0 if done.replayed == done.matched else 1


def _show_plan(connection: Connection, planned: PlannedReplay, pace: ChangePace, as_json: bool) -> None:
    plan, samples, seconds = planned.plan, planned.samples(connection), planned.seconds(pace)
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

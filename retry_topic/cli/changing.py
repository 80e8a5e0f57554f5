"""`wheel-sched run-now | reschedule | delete`: change messages by id or by filter.

Before a command changes several messages, it asks the user to confirm; with --yes it does not ask. The store changes at
most 500 messages in one step. An interrupted command has changed some messages completely and the others not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, TypeVar

import click

from retry_topic.cli.filters import selecting_options
from retry_topic.cli.settings import settings_of
from retry_topic.connection import Connection
from retry_topic.management import changing
from retry_topic.management.changing import ChangedMessages, ChangePace, Reach, outcome_words
from retry_topic.management.filters import Filter, ListedMessage
from retry_topic.management.opening import opened_connection, secrets_of
from retry_topic.management.selecting import Selected, check_choice, select
from wheel_sched.cli.failing import as_usage
from wheel_sched.cli.instants import DURATION, INSTANT
from wheel_sched.cli.options import Session, confirm, dry_run_option, json_option, pass_session, yes_option
from wheel_sched.cli.output import Progress, emit, note, say
from wheel_sched.management.moments import MOST_A_SECOND, check_moment, moment_ms
from wheel_sched.management.wording import amount, one_line, relative

F = TypeVar("F", bound=Callable[..., Any])

rate_option = click.option(
    "--rate",
    type=click.FloatRange(0, MOST_A_SECOND, min_open=True),
    metavar="N",
    help="Make about N messages due a second.",
)
spread_option = click.option(
    "--spread", "spread_ms", type=DURATION, metavar="DURATION", help="Spread their due times evenly over this time."
)


@dataclass(frozen=True, slots=True)
class ChangeRequest:
    """The options of a command that changes messages, as `change_options` adds them."""

    session: Session
    ids: tuple[str, ...]
    chosen: Filter
    everything: bool
    dry_run: bool
    yes: bool
    as_json: bool

    def select(self, connection: Connection, reach: Reach, dead: str = "add --dead") -> Selected:
        """Select the messages to change. When a filter selects none, print the advice of `Filter.elsewhere`.

        Args:
            connection: where the messages are stored.
            reach: which messages the change is for.
            dead: what the advice says about dead letters. Defaults to the option that selects them.

        Raises:
            UsageError: neither ids nor a filter nor --all is given, or ids are given together with a filter or --all.
            NotDone: an id does not exist, or several messages have it; nothing was changed.
        """
        chosen = replace(self.chosen, parked=reach.parked)
        with as_usage():
            check_choice(self.ids, chosen, self.everything)
        meant = select(connection, self.ids, chosen, self.everything, reach.searched)
        note_stored_as(meant.stored_as)
        if not len(meant) and (words := chosen.elsewhere(connection, reach.searched, dead)):
            note(words)
        return meant

    def agreed(self, action: str, meant: Selected, now_ms: int, *, for_good: bool = False) -> bool:
        """Ask before several messages are changed. A dry run only shows them. Returns whether to change them.

        Args:
            action: such as "reschedule {}"; words such as "3 messages" replace the braces.
            meant: the selected messages.
            now_ms: the store's present time, epoch ms.
            for_good: ask also for one message, because the change cannot be undone. Defaults to False.

        Raises:
            UsageError: there is no terminal to ask on, and --yes is absent.
            NotDone: the user answered no.
        """
        action = action.format(amount(len(meant), "message"))
        if self.dry_run:
            self._show(action, meant.samples, len(meant), now_ms)
        elif len(meant) > (0 if for_good else 1):
            confirm(f"{action[0].upper()}{action[1:]}{' for good' if for_good else ''}?", self.yes)
        return not self.dry_run

    def _show(self, action: str, samples: Sequence[ListedMessage], count: int, now_ms: int) -> None:
        if self.as_json:
            emit({"dry_run": True, "count": count, "samples": [entry.as_dict() for entry in samples]})
            return
        say(f"would {action}")
        for entry in samples:
            at = f"  {relative(entry.at_ms, now_ms)}" if entry.at_ms is not None else ""
            say(f"  {entry.id}  {entry.found.state}{at}  {entry.letter.topic}  {one_line(entry.error, 60)}".rstrip())
        note("nothing was changed")


def change_options(command: F) -> F:
    """Add the options of a command that changes messages. The command receives them as one argument `ChangeRequest`."""

    @wraps(command)
    def bundled(
        session: Session,
        ids: tuple[str, ...],
        chosen: Filter,
        everything: bool,
        dry_run: bool,
        yes: bool,
        as_json: bool,
        **own: Any,
    ) -> Any:
        return command(ChangeRequest(session, ids, chosen, everything, dry_run, yes, as_json), **own)

    wrapped: Any = pass_session(bundled)
    for option in (json_option, yes_option, dry_run_option):
        wrapped = option(wrapped)
    result: F = selecting_options(wrapped)
    return result


def note_stored_as(stored_as: Mapping[str, str]) -> None:
    """Say which messages the store has under another id than the one that was given."""
    for item_id, stored in stored_as.items():
        note(f"{item_id} is stored as {stored}")


@click.command(name="run-now")
@change_options
@rate_option
@spread_option
def run_now(request: ChangeRequest, rate: float | None, spread_ms: int | None) -> int:
    """Make messages due now. Held messages are released, dead letters are replayed.

    \b
    Examples:
      wheel-sched run-now 3f2a9c.2
      wheel-sched run-now --topic orders --error '*Timeout*' --rate 50 --yes
      wheel-sched run-now --state held --spread 5m --dry-run

    A filter selects messages that wait or are held; --dead or an id selects dead letters. Parked messages (they wait
    behind a failed message of their key) are selected only by id, and then lose their order.
    """
    with as_usage():
        pace = ChangePace(rate, spread_ms)
    settings = settings_of(request.session)
    with opened_connection(settings) as connection:
        meant = request.select(connection, changing.RUN_NOW)
        secrets = secrets_of(settings)
        changing.check_replays(meant, secrets)
        if not request.agreed("make {} due now", meant, connection.store.now_ms()):
            return 0
        with Progress("changed") as progress:
            changed = changing.run_now(connection, meant, pace, secrets=secrets, progress=progress)
    if changed.guarded:
        note(f"{amount(changed.guarded, 'message')} already replayed too often: `wheel-sched replay --max-replays N`")
    code = show_changed("due now", changed, request.as_json)
    if changed.paused:
        note(
            f"{amount(changed.paused, 'message')} stay held, because their topic is paused: `wheel-sched resume TOPIC`"
        )
    return code


@click.command()
@change_options
@click.option("--in", "delay_ms", type=DURATION, metavar="DURATION", help="Due this long from now.")
@click.option("--at", "at_ms", type=INSTANT, metavar="INSTANT", help="Due at this time: RFC 3339, or +5m.")
@spread_option
def reschedule(request: ChangeRequest, delay_ms: int | None, at_ms: int | None, spread_ms: int | None) -> int:
    """Give messages another due time.

    \b
    Examples:
      wheel-sched reschedule 3f2a9c.2 --in 2h
      wheel-sched reschedule --topic orders --at 2030-01-01T06:00:00Z --spread 10m --yes
    """
    with as_usage():
        check_moment(delay_ms, at_ms, dashes="--")
    if "dead" in request.chosen.states:
        raise click.UsageError("Dead letters have no due time; `wheel-sched replay` delivers them again.")
    with opened_connection(settings_of(request.session)) as connection:
        meant = request.select(connection, changing.RESCHEDULE, dead="see `wheel-sched replay`")
        now_ms = connection.store.now_ms()
        if not request.agreed("reschedule {}", meant, now_ms):
            return 0
        start_ms = moment_ms(delay_ms, at_ms, now_ms)
        with Progress("changed") as progress:
            changed = changing.reschedule(connection, meant, start_ms, ChangePace(None, spread_ms), progress=progress)
    return show_changed("rescheduled", changed, request.as_json, due_ms=start_ms)


@click.command()
@change_options
def delete(request: ChangeRequest) -> int:
    """Delete messages for good. A message in flight is not tried again after its present attempt.

    \b
    Examples:
      wheel-sched delete 3f2a9c.2 --yes
      wheel-sched delete --dead --fingerprint 3f2a --dry-run
      wheel-sched delete --dead --until 30d --yes

    A filter selects messages that wait or are held; --dead or an id selects dead letters.
    """
    with opened_connection(settings_of(request.session)) as connection:
        meant = request.select(connection, changing.DELETE)
        if not request.agreed("delete {}", meant, connection.store.now_ms(), for_good=True):
            return 0
        with Progress("changed") as progress:
            changed = changing.delete(connection, meant, progress=progress)
    return show_changed("deleted", changed, request.as_json)


def show_changed(done: str, changed: ChangedMessages, as_json: bool, **extra: Any) -> int:
    """Show how many messages were changed. Returns the exit code: 0 when all were changed, else 1."""
    if as_json:
        emit({**changed.as_dict(), **extra})
    else:
        say(f"{amount(changed.done, 'message')} {done}")
        for outcome, count in changed.others.items():
            say(f"{amount(count, 'message')} {outcome_words(outcome)}")
    return 0 if changed.complete else 1

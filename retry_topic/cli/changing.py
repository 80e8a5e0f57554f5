"""`wheel-sched run-now | reschedule | delete`: change messages by id or by filter.

More than one message is changed only after a question, or with --yes. Every change is made in steps of at most 500; a
run that is interrupted has changed some of them and none half.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import click

from retry_topic.cli.choosing import (
    Member,
    agree,
    alter,
    choose,
    choosing_options,
    tell_dry_run,
    tell_elsewhere,
    tell_outcomes,
)
from retry_topic.cli.filters import Filter
from retry_topic.cli.opening import opened_home, secrets_of
from retry_topic.cli.replaying import check_secrets
from retry_topic.cli.settings import settings_of
from retry_topic.dead_letters import DeadLetters, Selection
from retry_topic.home import Home
from wheel_sched.cli.instants import DURATION, INSTANT
from wheel_sched.cli.options import Session, confirm, dry_run_option, json_option, pass_session, yes_option
from wheel_sched.cli.output import amount, note
from wheel_sched.store import Outcome, State
from wheel_sched.store.operations import Alteration

rate_option = click.option(
    "--rate", type=click.FloatRange(0, 1e6, min_open=True), metavar="N", help="So many a second."
)
spread_option = click.option("--spread", "spread_ms", type=DURATION, metavar="DURATION", help="Evenly over this time.")

_LIVING: tuple[State, ...] = ("due", "held")
_DELETE = {"due": "c", "held": "c", "fly": "c", "dead": "x"}  # the verbs of change.lua: cancel, delete a dead one


@dataclass(frozen=True, slots=True)
class Pace:
    """How many a second, or over which time; neither = all at once."""

    rate: float | None = None
    spread_ms: int | None = None

    def __post_init__(self) -> None:
        if self.rate is not None and self.spread_ms is not None:
            raise click.UsageError("Give --rate or --spread, not both.")

    def due_ms(self, start_ms: int, place: int, total: int) -> int:
        """The due of number `place` of `total`."""
        if self.rate is not None:
            return start_ms + int(place * 1000 / self.rate)
        return start_ms + (self.spread_ms or 0) * place // max(total, 1)

    def per_second(self, total: int) -> float | None:
        """The same as a rate, None for all at once."""
        if self.spread_ms:
            return max(total * 1000 / self.spread_ms, 1e-6)
        return self.rate


@click.command(name="run-now")
@choosing_options
@rate_option
@spread_option
@dry_run_option
@yes_option
@json_option
@pass_session
def run_now(
    session: Session,
    ids: tuple[str, ...],
    chosen: Filter,
    everything: bool,
    rate: float | None,
    spread_ms: int | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Try messages now instead of when they are due. Held ones wait again; dead ones are replayed.

    \b
    Examples:
      wheel-sched run-now 3f2a9c.2
      wheel-sched run-now --topic orders --error '*Timeout*' --rate 50 --yes
      wheel-sched run-now --state held --spread 5m --dry-run

    A filter means what is due or held; dead letters take part with --dead, or by id. What is parked behind a
    failed message of its key is let out by id alone, and out of its order.
    """
    pace = Pace(rate, spread_ms)
    with opened_home(settings_of(session)) as home:
        meant = choose(home, ids, _in_order(chosen), everything, _LIVING)
        tell_elsewhere(home, meant, _in_order(chosen), _LIVING)
        secrets = secrets_of(settings_of(session))
        check_secrets((entry.letter.state for entry in meant.samples if entry.found.state == "dead"), secrets)
        counts = home.store.counts()
        now_ms = counts.now_us // 1000
        if dry_run:
            tell_dry_run("make {} due now", meant, now_ms, as_json)
            return 0
        agree("Make {} due now", meant, yes)
        outcomes = _reschedule(home, meant.living(), now_ms, pace)
        outcomes += _replay(home, [member.id for member in meant.dead()], pace, secrets)
        paused = sum(member.topic in counts.paused for member in meant.living())
    code = tell_outcomes("due now", outcomes, as_json)
    if paused:
        note(f"{amount(paused, 'message')} stay held, because their topic is paused; `wheel-sched resume TOPIC`")
    return code


@click.command()
@choosing_options
@click.option("--in", "delay_ms", type=DURATION, metavar="DURATION", help="So long from now.")
@click.option("--at", "at_ms", type=INSTANT, metavar="INSTANT", help="Then: RFC 3339, or +5m.")
@spread_option
@dry_run_option
@yes_option
@json_option
@pass_session
def reschedule(
    session: Session,
    ids: tuple[str, ...],
    chosen: Filter,
    everything: bool,
    delay_ms: int | None,
    at_ms: int | None,
    spread_ms: int | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Give messages another due.

    \b
    Examples:
      wheel-sched reschedule 3f2a9c.2 --in 2h
      wheel-sched reschedule --topic orders --at 2030-01-01T06:00:00Z --spread 10m --yes
    """
    if delay_ms is None and at_ms is None:
        raise click.UsageError("When? Give --in or --at.")
    if delay_ms is not None and at_ms is not None:
        raise click.UsageError("Give --in or --at, not both.")
    if "dead" in chosen.states:
        raise click.UsageError("Dead letters have no due; `wheel-sched replay` sends them through again.")
    with opened_home(settings_of(session)) as home:
        meant = choose(home, ids, _in_order(chosen), everything, _LIVING)
        tell_elsewhere(home, meant, _in_order(chosen), _LIVING, "see `wheel-sched replay`")
        now_ms = home.store.windows(0, 0)[0].now_us // 1000
        if dry_run:
            tell_dry_run("reschedule {}", meant, now_ms, as_json)
            return 0
        agree("Reschedule {}", meant, yes)
        start_ms = now_ms + delay_ms if delay_ms is not None else at_ms or 0
        outcomes = _reschedule(home, meant.members, start_ms, Pace(None, spread_ms))
    return tell_outcomes("rescheduled", outcomes, as_json, due_ms=start_ms)


@click.command()
@choosing_options
@dry_run_option
@yes_option
@json_option
@pass_session
def delete(
    session: Session,
    ids: tuple[str, ...],
    chosen: Filter,
    everything: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Delete messages for good; one in flight ends with the attempt under way.

    \b
    Examples:
      wheel-sched delete 3f2a9c.2 --yes
      wheel-sched delete --dead --fingerprint 3f2a --dry-run
      wheel-sched delete --dead --until 30d --yes

    A filter means what is due or held; dead letters take part with --dead, or by id.
    """
    with opened_home(settings_of(session)) as home:
        meant = choose(home, ids, chosen, everything, _LIVING)
        tell_elsewhere(home, meant, chosen, _LIVING)
        if dry_run:
            tell_dry_run("delete {}", meant, home.store.windows(0, 0)[0].now_us // 1000, as_json)
            return 0
        if len(meant):
            confirm(f"Delete {amount(len(meant), 'message')} for good?", yes)
        outcomes = alter(home, meant.members, lambda member, _: Alteration(member.id, _DELETE[member.state]))
    return tell_outcomes("deleted", outcomes, as_json)


def _in_order(chosen: Filter) -> Filter:
    """A filter never lets out what stands in line behind its key's head; ids do."""
    return replace(chosen, parked=False)


def _reschedule(home: Home, members: Sequence[Member], start_ms: int, pace: Pace) -> list[Outcome]:
    total = len(members)
    return alter(home, members, lambda member, place: Alteration(member.id, "r", pace.due_ms(start_ms, place, total)))


def _replay(home: Home, ids: Sequence[str], pace: Pace, secrets: Sequence[bytes]) -> list[Outcome]:
    if not ids:
        return []
    done = DeadLetters(home, secrets=secrets).replay(Selection(ids=frozenset(ids)), rate=pace.per_second(len(ids)))
    left = len(ids) - done.replayed
    if done.guarded:
        note(f"{amount(done.guarded, 'message')} replayed too often already; `wheel-sched replay --max-replays N`")
    return [Outcome.DONE] * done.replayed + [Outcome.WRONG_STATE] * left

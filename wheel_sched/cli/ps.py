"""`wheel-sched ps`: the live members of a namespace: consumers, retry services, schedulers and the like."""

from __future__ import annotations

import click

from wheel_sched.cli.options import Session, json_option, pass_session
from wheel_sched.cli.output import emit, note, table
from wheel_sched.management.members import HOST, KIND, NAME, as_dict, counted, live_members, shown
from wheel_sched.management.opening import opened
from wheel_sched.management.wording import relative, span
from wheel_sched.store.members import LiveMember, Member

_HEAD = ("kind", "name", "host", "pid", "version", "up", "seen", "holds", "reads")
_VERSION, _HOLDS, _READS = 16, 40, 60  # characters of a column


@click.command()
@click.option("--kind", metavar="KIND", help="Only members of this kind, such as consumer.")
@json_option
@pass_session
def ps(session: Session, kind: str | None, as_json: bool) -> None:
    """List the live consumers, retry services, Celery workers and schedulers.

    Each announces itself under a lease. One that was killed is listed until its lease ends. One that does not announce
    itself is not listed.

    \b
    Examples:
      wheel-sched ps
      wheel-sched ps --kind consumer --json | jq .pid
    """
    with opened(session.settings) as store:
        found, now_ms = live_members(store, kind)
    if as_json:
        for one in found:
            emit(as_dict(one, now_ms))
        return
    if not found:
        note("no member is live" if kind is None else "no member of this kind is live")
        return
    table(_HEAD, [_row(one, now_ms) for one in found], right=(3,))
    note(f"{counted(found)}; `wheel-sched doctor` says what is missing")


def _row(one: LiveMember, now_ms: int) -> tuple[str, ...]:
    member = one.member
    return (
        shown(member.kind, KIND),
        shown(member.name, NAME),
        shown(member.host, HOST),
        str(member.pid),
        shown(member.version, _VERSION),
        span(max(0, now_ms - one.since_ms)),
        relative(min(one.seen_ms, now_ms), now_ms),
        shown(_holds(member), _HOLDS),
        shown(", ".join(member.topics), _READS),
    )


def _holds(member: Member) -> str:
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in member.holds.items())

"""`wheel-sched ps`: the live members of a namespace: consumers, retry services, Celery workers and schedulers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import click

from wheel_sched.cli.opening import opened
from wheel_sched.cli.options import Session, json_option, pass_session
from wheel_sched.cli.output import amount, emit, note, one_line, relative, span, table
from wheel_sched.escaping import escaped
from wheel_sched.store.members import LiveMember, Member, Members

_HEAD = ("kind", "name", "host", "pid", "version", "up", "seen", "holds", "reads")
_KIND, _NAME, _HOST, _VERSION, _HOLDS, _READS = 20, 40, 30, 16, 40, 60  # characters of a column


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
        found = [one for one in Members(store).live() if kind in (None, one.member.kind)]
        now_ms = store.now_ms()
    found.sort(key=lambda one: (one.member.kind, one.member.name, one.member.host, one.member.pid, one.member.id))
    if as_json:
        for one in found:
            emit(as_dict(one, now_ms))
        return
    if not found:
        note("no member is live" if kind is None else "no member of this kind is live")
        return
    table(_HEAD, [_row(one, now_ms) for one in found], right=(3,))
    note(f"{counted(found)}; `wheel-sched doctor` says what is missing")


def counted(found: Sequence[LiveMember]) -> str:
    """How many members there are of each kind: `2 consumers, 1 retry-service`."""
    kinds = Counter(_cell(one.member.kind, _KIND) for one in found)
    return ", ".join(amount(count, kind) for kind, count in sorted(kinds.items())) or "none"


def place(one: LiveMember, now_ms: int) -> str:
    """A member in words, to find its process: `retry-service billing (pid 77 on web-1, seen 3s ago)`."""
    member = one.member
    who = f"{_cell(member.kind, _KIND)} {_cell(member.name, _NAME)}"
    seen = relative(min(one.seen_ms, now_ms), now_ms)
    return f"{who} (pid {member.pid} on {_cell(member.host, _HOST)}, seen {seen})"


def _cell(text: str, limit: int) -> str:
    """A text from another process for display: escaped, and then cut, because escapes are longer than characters."""
    return one_line(escaped(one_line(text)), limit) or "-"


def _row(one: LiveMember, now_ms: int) -> tuple[str, ...]:
    member = one.member
    return (
        _cell(member.kind, _KIND),
        _cell(member.name, _NAME),
        _cell(member.host, _HOST),
        str(member.pid),
        _cell(member.version, _VERSION),
        span(max(0, now_ms - one.since_ms)),
        relative(min(one.seen_ms, now_ms), now_ms),
        _cell(_holds(member), _HOLDS),
        _cell(", ".join(member.topics), _READS),
    )


def _holds(member: Member) -> str:
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in member.holds.items())


def as_dict(one: LiveMember, now_ms: int) -> dict[str, Any]:
    """A member as data for JSON."""
    member = one.member
    return {
        "id": member.id,
        "kind": member.kind,
        "name": member.name,
        "host": member.host,
        "pid": member.pid,
        "version": member.version,
        "topics": list(member.topics),
        "takes_in": list(member.takes_in),
        "retries_to": member.retries_to or None,
        "releases": member.releases,
        "holds": dict(member.holds),
        "since_ms": one.since_ms,
        "seen_ms": one.seen_ms,
        "until_ms": one.until_ms,
        "now_ms": now_ms,
    }

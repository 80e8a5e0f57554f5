"""Checks of the entries of the schedule, for `celery wheel doctor`, `celery wheel stats` and the dashboard.

Everything is read from the store; no worker is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from wheel_sched.management.doctor.finding import Finding, ok, problem, warn
from wheel_sched.management.wording import one_line, span, when
from wheel_sched.store.members import Members
from wheel_sched_celery.beat.entries import BeatEntries
from wheel_sched_celery.beat.entry import StoredEntry
from wheel_sched_celery.beat.shown_entry import entries_of
from wheel_sched_celery.settings import BEAT, WORKER

LATE_MS: Final = 5_000  # a due entry that waits longer than this is a sign that no worker serves any
START: Final = "start a worker with install(app, beat=True) and dispatch=True, or `celery -A PROJECT beat -S wheel`"
_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class BeatState:
    """The entries of an app's schedule at one time.

    Args:
        entries: all entries.
        gone: names of entries of code that the code of this process does not have.
        now_ms: the store's time, in ms since 1970.
        senders: how many live workers and beat processes send what is due. Defaults to None: it is not known, because
            the app has switched their announcements off, or the schedule has no entries.
    """

    entries: Sequence[StoredEntry]
    gone: frozenset[str]
    now_ms: int
    senders: int | None = None

    @property
    def next(self) -> StoredEntry | None:
        """The entry that is due first; None when none waits."""
        waiting = [one for one in self.entries if one.entry is not None and one.entry.due_ms is not None]
        return min(waiting, key=_due_ms, default=None)

    @property
    def overdue(self) -> list[StoredEntry]:
        """Entries that became due more than `LATE_MS` ago and that no process sends, the longest overdue first."""
        late = [one for one in self.entries if one.state == "waiting" and self.now_ms - one.found.score_ms > LATE_MS]
        return sorted(late, key=lambda one: one.found.score_ms)

    @property
    def failed(self) -> list[StoredEntry]:
        """Entries that wait until somebody corrects something."""
        return [one for one in self.entries if one.state in ("failed", "unreadable")]

    def as_dict(self) -> dict[str, Any]:
        """The state as data for JSON."""
        states: dict[str, int] = {}
        for one in self.entries:
            states[one.state] = states.get(one.state, 0) + 1
        first = self.next
        return {
            "entries": len(self.entries),
            "states": states,
            "overdue": len(self.overdue),
            "senders": self.senders,
            "gone": sorted(self.gone),
            "next": None if first is None else first.name,
            "next_ms": None if first is None else _due_ms(first),
        }


def beat_state(entries: BeatEntries) -> BeatState:
    """Read the state of an app's schedule."""
    gone, found = frozenset(one.name for one in entries.gone()), entries.all()
    return BeatState(found, gone, entries.store.now_ms(), _senders(entries) if found else None)


def _senders(entries: BeatEntries) -> int | None:
    if not entries.wheel.settings.announce:
        return None
    members = [live.member for live in Members(entries.store).live()]
    return sum(member.releases and member.kind in (WORKER, BEAT) for member in members)


def _due_ms(one: StoredEntry) -> int:
    return (one.entry.due_ms if one.entry is not None else None) or 0


def _names(found: Sequence[StoredEntry] | Sequence[str]) -> str:
    names = [one if isinstance(one, str) else one.name for one in found]
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return ", ".join(f"'{one_line(name, 60)}'" for name in names[:_NAMED]) + more


def late_words(state: BeatState) -> str:
    """A sentence that says which entries are overdue; "" when none is."""
    late = state.overdue
    if not late:
        return ""
    verb = "is" if len(late) == 1 else "are"
    first = f"the first, {_names(late[:1])}, by {span(state.now_ms - late[0].found.score_ms)}"
    return f"{entries_of(len(late))} of beat {verb} overdue and nobody sends their tasks; {first}"


def beat_findings(state: BeatState) -> list[Finding]:
    """Findings about entries that are overdue, have failed or lost their code, and about a schedule nobody sends."""
    if not state.entries:
        return [ok("beat", "the schedule has no entries")]
    found: list[Finding] = []
    if late := late_words(state):
        found.append(problem("beat", late, f"{START}; if one runs, see its log for celery.beat_*"))
    elif state.senders == 0 and state.next is not None:
        words = f"no worker and no beat process is live, so nobody will send {_names([state.next])}"
        found.append(problem("beat", f"{words}, {when(_due_ms(state.next), state.now_ms)}", START))
    else:
        first = state.next
        words = "none waits" if first is None else f"next {_names([first])}, {when(_due_ms(first), state.now_ms)}"
        found.append(ok("beat", f"{entries_of(len(state.entries))}, {words}"))
    if state.failed:
        first = state.failed[0]
        found.append(
            problem(
                "beat held",
                f"{entries_of(len(state.failed))} cannot run: {_names(state.failed)}; "
                f"{_names([first])}: {one_line(first.problem or first.state, 200)}",
                f"correct that, then celery wheel beat resume {_quoted(first.name)}",
            )
        )
    if state.gone:
        names = sorted(state.gone)
        found.append(
            warn(
                "beat gone",
                f"{entries_of(len(names))} of code or file that this process does not have: {_names(names)}; "
                "they go on",
                f"celery wheel beat remove {_quoted(names[0])}, unless another part of the app has it",
            )
        )
    return found


def _quoted(name: str) -> str:
    return "'" + one_line(name, 60).replace("'", "'\\''") + "'"

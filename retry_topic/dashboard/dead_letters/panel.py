"""The overview's panel about dead letters: new groups, regressed groups, and whether more messages die than before."""

from __future__ import annotations

from collections.abc import Sequence

from retry_topic.dashboard.dead_letters.addresses import group_path
from retry_topic.dashboard.opening import connection_of
from retry_topic.management.inbox.groups import Inbox, InboxGroup, is_rising
from wheel_sched.dashboard import Dashboard, Panel, Problem
from wheel_sched.management.wording import amount

_SHOWN = 5
_FRESH_S = 3.0  # reading a thousand groups takes about 50 ms


def panel(dashboard: Dashboard) -> Panel | None:
    """New and regressed groups with links. None when no group has letters."""
    inbox = Inbox(connection_of(dashboard))
    return panel_of(dashboard.recent.get("dead-letter groups", _FRESH_S, inbox.groups))


def panel_of(groups: Sequence[InboxGroup]) -> Panel | None:
    """The panel about the regressed and the new ones of these groups; None when there is nothing to show.

    `groups`: the largest first.
    """
    new = [one for one in groups if one.state == "new" and one.counted.count]
    regressed = [one for one in groups if one.state == "regressed"]
    lines = [_line("regressed", one) for one in regressed[:_SHOWN]] + [_line("new", one) for one in new[:_SHOWN]]
    more = max(0, len(new) - _SHOWN) + max(0, len(regressed) - _SHOWN)
    if more:
        lines.append(("more", f"{amount(more, 'group')} more", "/dead-letters"))
    found = problems_of(groups, regressed)
    return Panel("Dead letters", lines, found) if lines or found else None


def problems_of(groups: Sequence[InboxGroup], regressed: Sequence[InboxGroup]) -> list[Problem]:
    """The problems: errors that came back after somebody had marked them as fixed, and more deaths than before."""
    found = []
    if regressed:
        names = ", ".join(_name(one) for one in regressed[:3])
        found.append(
            Problem(
                f"{amount(len(regressed), 'error')} marked as fixed came back: {names}",
                "see Dead letters, state regressed",
                "problem",
            )
        )
    hours = [sum(hour) for hour in zip(*(one.counted.by_hour for one in groups), strict=True)]
    if hours and is_rising(hours):
        mean = sum(hours[:-1]) / max(len(hours) - 1, 1)
        found.append(
            Problem(
                f"dead letters rise: {hours[-1]:,} in this hour, {mean:,.1f} an hour in the day before",
                "see Dead letters, sorted by last seen",
            )
        )
    return found


def _line(label: str, one: InboxGroup) -> tuple[str, str, str]:
    return (
        label,
        f"{_name(one)}: {amount(one.counted.count, 'letter')}",
        group_path(one.counted.topic, one.counted.group),
    )


def _name(one: InboxGroup) -> str:
    return f"{one.counted.topic or '(no topic)'} {one.counted.group[:40]}"

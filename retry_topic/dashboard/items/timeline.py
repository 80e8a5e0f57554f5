"""Draws the failed attempts of a message: a row for each attempt, a bar for its wait, and a line for the present."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

from retry_topic.management.filters import ListedMessage
from wheel_sched.duration import format_duration
from wheel_sched.management.wording import instant, span
from wheel_sched.store.core.items import MAX_DUE_MS

_WIDTH, _LEFT, _RIGHT, _ROW = 720, 110, 150, 26


class Waited(NamedTuple):
    """An attempt and the wait after it.

    Args:
        number: the number of the attempt.
        at_ms: when it failed, epoch ms.
        until_ms: when the next attempt was due; None when the message was given up.
    """

    number: int
    at_ms: int
    until_ms: int | None


def waits_of(entry: ListedMessage) -> list[Waited]:
    """The failed attempts that the message's headers record, oldest first; without such records, only the last attempt.

    If the message still waits, its last wait ends at its present due time, which somebody may have changed.
    """
    waits = _recorded(entry)
    if waits and entry.found.state == "due":
        waits[-1] = waits[-1]._replace(until_ms=entry.at_ms)
    return waits


def _recorded(entry: ListedMessage) -> list[Waited]:
    state, known = entry.letter.state, entry.letter.failed_attempts.attempts
    if known:
        return [
            Waited(one.number, one.at_ms, None if one.delay_ms is None else min(one.at_ms + one.delay_ms, MAX_DUE_MS))
            for one in known
        ]
    if not state.attempt or state.last_failed_ms is None:
        return []
    return [Waited(state.attempt, state.last_failed_ms, state.due_ms)]


def timeline(waits: Sequence[Waited], now_ms: int) -> Markup:
    """The picture as SVG, with a text for screen readers; empty without attempts."""
    if not waits:
        return Markup()
    instants = [now_ms, *(one.at_ms for one in waits), *(one.until_ms for one in waits if one.until_ms is not None)]
    first_ms, last_ms = min(instants), max(instants)
    width = _WIDTH - _LEFT - _RIGHT

    def place(at_ms: int) -> float:
        return _LEFT + (at_ms - first_ms) * width / max(last_ms - first_ms, 1)

    height = len(waits) * _ROW + 24
    parts = []
    for row, one in enumerate(waits):
        middle = row * _ROW + 14
        parts.append(
            f'<text x="{_LEFT - 10}" y="{middle + 4}" text-anchor="end" class="label">attempt {one.number}</text>'
        )
        end = place(one.at_ms)
        words = "given up"
        if one.until_ms is not None:
            start, end = sorted((end, place(one.until_ms)))
            words = f"wait {format_duration(max(one.until_ms - one.at_ms, 0))}"
            parts.append(
                f'<rect class="bar" x="{start:.1f}" y="{middle - 5}" width="{max(end - start, 1):.1f}" height="10">'
                f"<title>due {escape(instant(one.until_ms))}</title></rect>"
            )
        parts.append(
            f'<circle class="failed" cx="{place(one.at_ms):.1f}" cy="{middle}" r="5">'
            f"<title>failed {escape(instant(one.at_ms))}</title></circle>"
            f'<text x="{end + 10:.1f}" y="{middle + 4}">{escape(words)}</text>'
        )
    now = place(now_ms)
    parts.append(
        f'<line class="now" x1="{now:.1f}" x2="{now:.1f}" y1="0" y2="{height - 20}"/>'
        f'<text x="{now:.1f}" y="{height - 4}" text-anchor="middle">now</text>'
    )
    about = f"{len(waits)} failed attempts over {span(last_ms - first_ms)}, from {instant(first_ms)}"
    return Markup(  # noqa: S704  # the parts are made of numbers and escaped texts
        f'<svg class="chart timeline" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" role="img" '
        f'aria-label="{escape(about)}">{"".join(parts)}</svg>'
    )

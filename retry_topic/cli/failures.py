"""The failed attempts and the traceback of a message as lines of text, for `wheel-sched show`."""

from __future__ import annotations

from collections.abc import Iterator

from retry_topic.dead_letters import DeadLetterInfo
from retry_topic.message.headers.failed_attempts import FailedAttempt
from retry_topic.policy import format_duration
from wheel_sched.cli.output import paint
from wheel_sched.escaping import safe
from wheel_sched.management.wording import one_line, when

_INDENT = " " * 14


def failure_lines(letter: DeadLetterInfo, now_ms: int) -> Iterator[str]:
    """The failed attempts as lines, oldest first, then the traceback. A message that has not failed has no lines.

    The texts come from other programs, so their control characters are escaped.
    """
    known = letter.failed_attempts
    if known.dropped:
        yield f"{paint('attempt'.ljust(13), 'bold')} {known.dropped:,} older failed attempts are not kept"
    for one in known.attempts:
        what = ": ".join(filter(None, (one.error_class, one.text))) or "the handler gave no reason"
        name = f"attempt {one.number}"
        yield f"{paint(name.ljust(13), 'bold')} failed {when(one.at_ms, now_ms)}: {one_line(what)}"
        yield f"{_INDENT}{_following(one)}"
    if letter.traceback:
        yield f"{paint('traceback'.ljust(13), 'bold')} of the last failed attempt"
        for line in letter.traceback.split("\n"):
            yield f"{_INDENT}{safe(line)}"


def _following(one: FailedAttempt) -> str:
    """What the policy decided after a failed attempt, and which process made the attempt."""
    process = f"; handled by {one_line(one.process)}" if one.process else ""
    decided = "given up" if one.delay_ms is None else f"next attempt after {format_duration(one.delay_ms)}"
    return f"{decided} ({one_line(one.chosen_by)}){process}"

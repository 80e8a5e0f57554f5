"""The reports of runs: what happened to each message."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Literal

from wheel_sched.escaping import escaped


@dataclass(frozen=True, slots=True)
class AttemptSeen:
    """One call of the handler.

    Args:
        number: 0 for the first delivery, then the number of the retry.
        began_s: when it began, in seconds since the start.
        process: the simulated process that ran it.
        outcome: "ok", "failed", or "cut off" if its process died during the call.
        error: class and text of the exception that the handler raised, or the `Retry` or `DeadLetter` that it returned;
            "" if there was neither.
        again_s: only in a `HandlerRun`: when the message is due again, in seconds since the start. Defaults to None: it
            does not come back.
        why: only in a `HandlerRun`: the policy's reasons for that, in words. Defaults to "".
    """

    number: int
    began_s: float
    process: str
    outcome: Literal["ok", "failed", "cut off"]
    error: str = ""
    again_s: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class MessageSeen:
    """What happened to one message.

    Args:
        id: its id.
        value: its payload.
        sent_s: when it was sent, in seconds since the start.
        attempts: the calls of the handler, in order.
        end: "succeeded"; "dead" (a dead letter); "superseded" (another message took its place, by collapse or
            debounce); "lost" (it was sent, has neither succeeded nor died, and nothing waits any more); or "waiting"
            (anything else, mostly because the run reached its limit).
    """

    id: str
    value: bytes
    sent_s: float
    attempts: tuple[AttemptSeen, ...]
    end: Literal["succeeded", "dead", "superseded", "waiting", "lost"]

    @property
    def took_s(self) -> float | None:
        """Seconds from sending to the beginning of the first attempt that succeeded. None: no attempt succeeded."""
        return next((one.began_s - self.sent_s for one in self.attempts if one.outcome == "ok"), None)

    @property
    def repeats(self) -> int:
        """How many calls were repeats: an earlier call had the same number, or an earlier call had succeeded."""
        found, seen, done = 0, set[int](), False
        for one in self.attempts:
            found += done or one.number in seen
            seen.add(one.number)
            done = done or one.outcome == "ok"
        return found


@dataclass(frozen=True, slots=True)
class Report:
    """The report of a simulated run. `str(report)` is a summary for people.

    Args:
        seed: the seed of the run. The same seed gives the same run again.
        messages: what happened to each message, in the order of sending.
        faults: the faults that struck, in words.
        took_s: how long the run took, in virtual seconds.
        trace: all events, one line each.
    """

    seed: int
    messages: tuple[MessageSeen, ...]
    faults: tuple[str, ...]
    took_s: float
    trace: tuple[str, ...]

    def ended(self, end: str) -> list[MessageSeen]:
        """The messages that ended in this way, see `MessageSeen.end`."""
        return [one for one in self.messages if one.end == end]

    @property
    def calls(self) -> int:
        """How often the handler was called."""
        return sum(len(one.attempts) for one in self.messages)

    @property
    def repeats(self) -> int:
        """How many of the calls were repeats. See `MessageSeen.repeats`."""
        return sum(one.repeats for one in self.messages)

    def __str__(self) -> str:
        counts = {end: len(self.ended(end)) for end in ("succeeded", "dead", "waiting", "lost")}
        lines = [
            f"{len(self.messages)} messages, seed {self.seed}: "
            + ", ".join(f"{count} {end}" for end, count in counts.items()),
            f"the handler was called {self.calls} times, {self.repeats} of them were repeats",
        ]
        took = sorted(one.took_s for one in self.messages if one.took_s is not None)
        if took:
            lines.append(f"success came after {statistics.median(took):.1f} s (median), {took[-1]:.1f} s (slowest)")
        lines.append(f"faults: {'; '.join(self.faults) or 'none'}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class DeadSeen:
    """A message that became a dead letter.

    Args:
        id: its id.
        value: its payload.
        reason: why it is not retried, such as "max-attempts", or "verdict" if the handler returned a `DeadLetter`.
        error: as in `AttemptSeen`, of the last attempt. "" if the handler was not called.
        at_s: when it died, in seconds since the start.
    """

    id: str
    value: bytes
    reason: str
    error: str
    at_s: float


@dataclass(frozen=True, slots=True, repr=False)
class HandlerRun:
    """What `run` has seen. `str(run)` has a line for each attempt, `repr(run)` is one line for assertions.

    Args:
        messages: what happened to each message, in the order in which they were given.
        dead_letters: the messages that became dead letters, in the order of their deaths.
        elapsed_s: how long the run took, in virtual seconds.
    """

    messages: tuple[MessageSeen, ...]
    dead_letters: tuple[DeadSeen, ...]
    elapsed_s: float

    @property
    def attempts(self) -> tuple[int, ...]:
        """How often the handler was called for each message, in the order of the messages."""
        return tuple(len(one.attempts) for one in self.messages)

    @property
    def deliveries(self) -> int:
        """How often the handler was called in all."""
        return sum(self.attempts)

    def ended(self, end: str) -> list[MessageSeen]:
        """The messages that ended in this way, see `MessageSeen.end`."""
        return [one for one in self.messages if one.end == end]

    def __repr__(self) -> str:
        ends = ", ".join(f"{one.id} {one.end} after {len(one.attempts)}" for one in self.messages[:5])
        more = f" and {len(self.messages) - 5} more" if len(self.messages) > 5 else ""
        return f"<HandlerRun {self.deliveries} deliveries in {self.elapsed_s:.1f} s: {ends or 'no messages'}{more}>"

    def __str__(self) -> str:
        lines = [f"{len(self.messages)} messages, {self.deliveries} deliveries, {self.elapsed_s:.1f} virtual seconds"]
        for one in self.messages:
            lines.append(f"{one.id} {_quoted(one.value)}: {one.end}")
            for attempt in one.attempts:
                back = "" if attempt.again_s is None else f"; again at {attempt.again_s:.1f} s"
                error = f": {attempt.error}" if attempt.error else ""
                lines.append(f"  {attempt.began_s:.1f} s  {attempt.outcome}{error}{back}")
        lines += [f"dead: {one.id}, {one.reason}" for one in self.dead_letters]
        return "\n".join(map(escaped, lines))


def _quoted(value: bytes) -> str:
    return repr(value if len(value) <= 40 else value[:37] + b"...")

"""The report of a simulated run: what happened to each message."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Literal


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
    """

    number: int
    began_s: float
    process: str
    outcome: Literal["ok", "failed", "cut off"]
    error: str = ""


@dataclass(frozen=True, slots=True)
class MessageSeen:
    """What happened to one message.

    Args:
        id: its id.
        value: its payload.
        sent_s: when it was sent, in seconds since the start.
        attempts: the calls of the handler, in order.
        end: "succeeded"; "dead" (a dead letter); "lost" (it was sent, has neither succeeded nor died, and nothing waits
            any more); or "waiting" (anything else, mostly because the run reached its limit).
    """

    id: str
    value: bytes
    sent_s: float
    attempts: tuple[AttemptSeen, ...]
    end: Literal["succeeded", "dead", "waiting", "lost"]

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

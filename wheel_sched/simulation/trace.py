"""The trace of a simulated run: what happened, when, and in which process. Equal hashes mean equal runs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import NamedTuple


class TraceEvent(NamedTuple):
    """One line of a trace. `at_ns`: virtual time since the start. `who`: process and thread. `what`: the event."""

    at_ns: int
    who: str
    what: str

    def __str__(self) -> str:
        return f"{self.at_ns / 1e6:12.3f} ms  {self.who:<28} {self.what}"


class Trace:
    """The events of one simulated run, in order."""

    def __init__(self) -> None:
        self.events: list[TraceEvent] = []

    def __iter__(self) -> Iterator[TraceEvent]:
        return iter(self.events)

    def add(self, at_ns: int, who: str, what: str) -> None:
        self.events.append(TraceEvent(at_ns, who, what))

    def digest(self) -> str:
        """A hash of all events."""
        found = hashlib.blake2b(digest_size=16)
        for event in self.events:
            found.update(f"{event.at_ns} {event.who} {event.what}\n".encode("utf-8", "backslashreplace"))
        return found.hexdigest()

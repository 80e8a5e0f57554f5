"""How long figures were measured. A rate or a lateness under steady load means little without it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Measured:
    """How long a figure was measured.

    Args:
        rounds: in how many rounds.
        count: how many things each round measured. None: as many as the time allowed.
        of: the things, e.g. "messages".
        seconds: over how many seconds they were due, or were made, in each round. None: they were handled as fast as
            possible, so the count says how long it took.
    """

    rounds: int
    count: int | None
    of: str
    seconds: float | None = None

    def in_json(self) -> dict[str, Any]:
        """The object for the JSON of a result. `measured_s` has the seconds of each round."""
        return {"rounds": self.rounds, "count": self.count, "of": self.of, "measured_s": self.seconds}


def text_of(found: Mapping[str, Any]) -> str:
    """The text for an object of `Measured.in_json`, e.g. "5 x 2,000 messages in 5 s"."""
    what = found["of"] if found["count"] is None else f"{found['count']:,} {found['of']}"
    seconds = "" if found["measured_s"] is None else f" in {found['measured_s']:g} s"
    return f"{found['rounds']} x {what}{seconds}"

"""How long figures were measured. Without this length, a rate or a lateness under steady load means little."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Measured:
    """How long a figure was measured.

    Args:
        rounds: in how many rounds it was measured.
        count: how many things each round measured. None: as many as the time allowed.
        of: what the things are, e.g. "messages".
        seconds: the seconds of each round, over which the things were due or were made. None: they were handled as
            fast as possible, so only their count tells how long a round was.
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

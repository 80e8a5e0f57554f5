"""What a check of `doctor` found, and what checks look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from wheel_sched.config import Settings
from wheel_sched.redacting import redacted_text
from wheel_sched.store import Counts

Level = Literal["ok", "warn", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One check's result.

    Args:
        check: its name, stable for scripts.
        level: "problem" breaks a promise now, "warn" may later.
        evidence: what was seen.
        mend: what to do; "" when all is well.
    """

    check: str
    level: Level
    evidence: str
    mend: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "evidence", redacted_text(self.evidence))  # it may quote an error


@dataclass(slots=True)
class Patient:
    """What is examined: a server that answers, and the namespace when it exists.

    Args:
        settings: what was asked for.
        url: of the server.
        client: redis-py's.
        info: the server's INFO, with `ping_ms`.
        config: what CONFIG GET says; {} when the server hides it.
        shards: of the namespace, 0 when it does not exist.
        counts: of each shard, read in one round trip.
        now_ms: the server's clock when they were read.
    """

    settings: Settings
    url: str
    client: Any
    info: Mapping[str, Any]
    config: Mapping[str, str] = field(default_factory=dict)
    shards: int = 0
    counts: Sequence[Counts] = ()
    now_ms: int = 0


Check = Callable[[Patient], Finding]


def ok(check: str, evidence: str) -> Finding:
    return Finding(check, "ok", evidence)


def warn(check: str, evidence: str, mend: str) -> Finding:
    return Finding(check, "warn", evidence, mend)


def problem(check: str, evidence: str, mend: str) -> Finding:
    return Finding(check, "problem", evidence, mend)

"""The result of a check of `doctor`, and the target that checks examine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from wheel_sched.config import Settings
from wheel_sched.redacting import redacted_text
from wheel_sched.store import Counts, LiveMember

Level = Literal["ok", "warn", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Args:
        check: the name of the check, stable for scripts.
        level: a "problem" breaks a guarantee now, a "warn" may break one later.
        evidence: what the check saw.
        fix: what to do about it. Defaults to "": nothing.
    """

    check: str
    level: Level
    evidence: str
    fix: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "evidence", redacted_text(self.evidence))  # it may quote an error with a password


@dataclass(slots=True)
class ExaminedTarget:
    """What checks examine: a server that answers, and the namespace when it exists.

    Args:
        settings: the settings of the command.
        url: address of the server.
        client: redis-py client of the server.
        info: the server's INFO, with `ping_ms`.
        config: the answers of CONFIG GET. Defaults to {}: the server hides them.
        shards: shard count of the namespace. Defaults to 0: the namespace does not exist.
        counts: counts of each shard, read in one round trip. Defaults to none.
        now_ms: the server's clock when the counts were read. Defaults to 0.
        members: the live members of the namespace. Defaults to none.
    """

    settings: Settings
    url: str
    client: Any
    info: Mapping[str, Any]
    config: Mapping[str, str] = field(default_factory=dict)
    shards: int = 0
    counts: Sequence[Counts] = ()
    now_ms: int = 0
    members: Sequence[LiveMember] = ()


Check = Callable[[ExaminedTarget], Finding]


def ok(check: str, evidence: str) -> Finding:
    return Finding(check, "ok", evidence)


def warn(check: str, evidence: str, fix: str) -> Finding:
    return Finding(check, "warn", evidence, fix)


def problem(check: str, evidence: str, fix: str) -> Finding:
    return Finding(check, "problem", evidence, fix)

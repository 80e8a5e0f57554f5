"""The results of the checks, and the target that the checks examine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
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
class DoctorReport:
    """The findings so far.

    Args:
        findings: in the order of the checks. Defaults to none.
        away: whether the server could not be reached, so that its checks did not run. Defaults to False.
    """

    findings: list[Finding] = field(default_factory=list)
    away: bool = False

    def add(self, finding: Finding) -> Finding:
        """Append a finding, and return it."""
        self.findings.append(finding)
        return finding

    @property
    def healthy(self) -> bool:
        """Whether no check has found a problem; warnings do not count."""
        return not self.count("problem")

    def count(self, level: Level) -> int:
        """How many findings have this level."""
        return sum(finding.level == level for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """The findings as data for JSON."""
        return {"healthy": self.healthy, "findings": [asdict(finding) for finding in self.findings]}


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

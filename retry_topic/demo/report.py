"""The result of the demo: a table for people, one JSON object for programs."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wheel_sched.redacting import redacted


@dataclass(slots=True)
class DemoReport:
    """The counts of one run. The consumer measures the lateness, in ms, of every message that came back from the store.

    `duplicated` counts requests that the endpoint accepted although it had accepted the same record before. The
    consumer cannot know this: the first answer came after the timeout, or the connection broke. So the attempt failed
    and was repeated. A handler is called at least once; the retry topic and the store add no further calls.
    """

    records: int
    delivered: int = 0
    delivered_by_attempt: dict[str, int] = field(default_factory=dict)
    dead: dict[str, int] = field(default_factory=dict)
    early: int = 0
    lost: int = 0
    duplicated: int = 0
    lateness_ms: dict[str, float] = field(default_factory=dict)
    returned: int = 0
    takeover_ms: int | None = None
    hand_over: str = ""
    seconds: float = 0.0
    answers: dict[str, int] = field(default_factory=dict)

    @property
    def accounted(self) -> bool:
        """Whether every record is delivered or dead, none was early and none is lost."""
        return self.delivered + sum(self.dead.values()) == self.records and not self.early and not self.lost

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__} | {"accounted": self.accounted}


ONCE_MORE = (
    '"Accepted once more" counts repeated requests that the endpoint accepts again. Its first answer came too late, so '
    "the consumer tried again. A handler is called at least once: make it idempotent."
)


def percentiles(values: list[int]) -> dict[str, float]:
    """The p50, the p99 and the max of the values. If there are no values, all three are 0."""
    if not values:
        return {"p50": 0, "p99": 0, "max": 0}
    ordered = sorted(values)

    def at(share: float) -> int:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    return {"p50": at(0.50), "p99": at(0.99), "max": ordered[-1]}


def as_text(report: DemoReport, store: str) -> str:
    """The result as a table, followed by commands that show more."""
    rows: list[tuple[str, str]] = [("records", f"{report.records:,}")]
    rows += [
        (f"delivered at attempt {attempt}", f"{count:,}") for attempt, count in report.delivered_by_attempt.items()
    ]
    rows += [(f"dead-lettered: {error}", f"{count:,}") for error, count in report.dead.items()]
    late = report.lateness_ms
    rows += [
        ("came back from the store", f"{report.returned:,}"),
        ("lateness p50 / p99 / max", f"{late['p50']:.0f} / {late['p99']:.0f} / {late['max']:.0f} ms"),
        ("early", f"{report.early:,}"),
        ("lost", f"{report.lost:,}"),
        ("accepted once more", f"{report.duplicated:,}"),
    ]
    width = max(len(name) for name, _ in rows)
    lines = ["", *(f"  {name:<{width}}  {value:>16}" for name, value in rows), ""]
    if report.takeover_ms is not None:
        lines.append(
            "  The demo killed the first retry service (SIGKILL) half-way. The second one was ready "
            f"{report.takeover_ms} ms later. Messages that were due in between have the greatest lateness."
        )
    lines.append(f"  {ONCE_MORE}")
    lines.append(f"  Hand-over: {report.hand_over}. The run took {report.seconds:.1f} s.")
    verdict = "Every record is accounted for." if report.accounted else "NOT every record is accounted for."
    program = f"{_program()} --store {redacted(store)}"
    lines += [
        "",
        f"  {verdict}",
        "",
        "  To see more:",
        f"    {program} list --dead --group",
        f"    {program} list --dead --limit 5",
        f"    {program} show ID",
        f"    {program} replay --error '*410*' --dry-run",
        f"    {program} history export attempts.jsonl",
        f"    {program} doctor",
        "",
    ]
    return "\n".join(lines)


def _program() -> str:
    """The command that starts `wheel-sched` here: its name, or its path beside the running Python."""
    beside = Path(sys.executable).with_name("wheel-sched")
    if shutil.which("wheel-sched") or not beside.exists():
        return "wheel-sched"
    return os.path.relpath(beside)

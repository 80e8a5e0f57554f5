"""The names of all metrics in the source: base units, and no other units."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAMES = re.compile(r"\b(gauge|counter|lateness)\(\s*f?\"([^\"]+)\"")
OTHER_UNITS = {"ms", "us", "ns", "milliseconds", "minutes", "hours", "days", "kb", "mb", "gb", "kilobytes", "megabytes"}
OTHER_UNITS |= {"percent", "permille"}


def test_metrics_have_base_units() -> None:
    """A time is in seconds and a size in bytes, and the name says so. Only a counter ends in `_total`, which the client
    library adds."""
    folders = ("wheel_sched", "retry_topic", "integrations")
    sources = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    found = {(kind, name) for path in sources for kind, name in NAMES.findall(path.read_text("utf-8"))}
    assert len(found) > 25, found  # the pattern still finds the metrics
    for kind, name in found:
        words = name.split("_")
        assert not OTHER_UNITS.intersection(words), name
        assert words[-1] != "total", name
        if kind == "lateness" or {"overdue", "due", "timestamp", "duration", "age"}.intersection(words[:-1]):
            assert words[-1] in {"seconds", "messages"}, name
        if "memory" in words:
            assert words[-1] == "bytes", name

"""The picture of APScheduler's own stores and schedulers beside ours."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any

from benchmarks.charts import ChartMark, Row, RowGroup, Words, dots, time_text
from benchmarks.figures import shown

# the key of a result, its unit in seconds, the unit's name, what the result means
_ROWS = (
    ("drain_us.date", 1e-6, "µs", "one job of a burst of one-shots"),
    ("drain_us.interval", 1e-6, "µs", "one job of a burst of interval jobs"),
    ("redis_us", 1e-6, "µs", "one job of a burst on Redis"),
    ("p99_lateness_ms_10k", 1e-3, "ms", "99 of 100 jobs are no later, at 10,000/s"),
    ("add_job_ms_50k_due", 1e-3, "ms", "longest add_job, 50,000 jobs due"),
    ("loop_stall_ms_3k", 1e-3, "ms", "longest event-loop stall, 3,000 jobs due"),
    ("update_us_1m", 1e-6, "µs", "one update among 1,000,000 jobs"),
)
_SIDES = {"ours": "wheel-sched", "stock": "APScheduler's own"}


def write_plots(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write the picture, and `apscheduler.json` with what it shows. Returns the path of the picture."""
    shown: dict[str, Any] = {}
    for key, *_ in _ROWS:
        *outer, last = key.split(".")
        values = {side: _found(result, key)[side] for side in _SIDES}
        reduce(lambda inside, step: inside.setdefault(step, {}), outer, shown)[last] = values
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "apscheduler.json").write_text(json.dumps(shown, indent=2) + "\n", "utf-8")
    return draw(folder)


def draw(folder: Path) -> list[Path]:
    """Draw `apscheduler.svg` from the `apscheduler.json` of `folder`. Returns its path."""
    result = json.loads((folder / "apscheduler.json").read_text("utf-8"))
    rows = [
        Row(
            text,
            [
                ChartMark(
                    series, _found(result, key)[side] * seconds, f"{shown(float(_found(result, key)[side]))} {unit}"
                )
                for series, side in enumerate(_SIDES)
            ],
        )
        for key, seconds, unit, text in _ROWS
    ]
    words = Words(
        title="APScheduler: times of its own stores and schedulers beside ours",
        description="Rows with two times each. Further left is better.",
        axis="time, further left is better",
        legend=list(_SIDES.values()),
    )
    path = folder / "apscheduler.svg"
    path.write_text(dots(words, [RowGroup("", rows)], time_text), "utf-8")
    return [path]


def _found(result: Mapping[str, Any], key: str) -> Mapping[str, float]:
    found: Any = result
    for step in key.split("."):
        found = found[step]
    return found  # type: ignore[no-any-return]

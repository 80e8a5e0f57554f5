"""The history of a benchmark's ratios, and which ratios a new run calls worse.

The history is a file of JSON Lines. Each run of a benchmark adds a line; no line is ever changed. A line has the date,
the commit, the machine, the machine's fitness (whether it was quiet enough to measure), and the ratios of the run.
Ratios are gated figures that are ratios themselves or whose gate is a multiple of a baseline. Absolute figures are left
out, because they depend more on the machine's load at that hour than on the commit.

A ratio is worse when its values in the judged run and in the previous fit run are both worse than its usual value by
more than is allowed. The usual value is the median over the last `RECENT` fit runs before these two. So one bad run is
never called a loss, and a loss does not become the usual value before it is found. Allowed are 10 %, or four
times the median deviation of the recent runs from the usual value if this is more. A loss of less than 1 % of the gate
does not count either. Only runs with the same benchmark, sizes and machine are compared. Unfit runs are recorded, but
not judged, and no run is compared with them.
"""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.figures import WORSE_PERCENT, Figure, Result
from wheel_sched.wheel import CORE

RECENT = 10  # the usual value is the median of this many runs
LEAST = 3  # with fewer runs there is no usual value
_UNEVEN = 4  # so many median deviations are allowed: two runs in a row are practically never worse by chance
_NOISE = 0.01  # a loss that is smaller than this part of the gate does not count
_ROOT = Path(__file__).resolve().parents[1]


class DamagedHistoryError(Exception):
    """A line of a history is not the record of a run."""


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """The record of one run.

    Args:
        date: when the run ended, in ISO 8601 and UTC.
        commit: the hash of the commit; it ends with "-dirty" if files differed from the commit.
        benchmark: the name of the benchmark, e.g. "store" or "store, quick". Runs of other names are not compared.
        machine: the kind of the machine. Runs on other kinds are not compared.
        fitness: how fit the machine was, as in the result of the benchmark. `unfit` has the reasons why it was not.
        ratios: the ratios by the key of their figure.
    """

    date: str
    commit: str
    benchmark: str
    machine: str
    fitness: Mapping[str, Any]
    ratios: Mapping[str, float]

    @property
    def fit(self) -> bool:
        """Whether the machine was fit to measure before and after the run."""
        return not self.fitness["unfit"]


@dataclass(frozen=True, slots=True)
class Loss:
    """A ratio that was worse in two fit runs, one after the other.

    Args:
        key: the key of the figure.
        usual: the median over the recent fit runs before these two.
        previous: the value in the earlier of the two runs.
        here: the value in the later one, which is judged.
        allowed_percent: how much worse than usual a run may be.
    """

    key: str
    usual: float
    previous: float
    here: float
    allowed_percent: float = WORSE_PERCENT

    def __str__(self) -> str:
        return (
            f"{self.key}: {self.here:g} after {self.previous:g}, both more than {self.allowed_percent:.3g} % worse "
            f"than the usual {self.usual:g}"
        )


def run_of(benchmark: str, figures: Sequence[Figure], result: Result) -> RecordedRun:
    """Make the record of a run that has just ended. `result` has the values, the fitness, and whether it was quick."""
    return RecordedRun(
        datetime.now(UTC).isoformat(timespec="seconds"),
        _commit(),
        f"{benchmark}, quick" if result["quick"] else benchmark,
        machine(),
        result["fitness"],
        {
            figure.key: float(f"{ratio:.6g}")
            for figure in figures
            if (ratio := figure.ratio(result)) is not None and math.isfinite(ratio)
        },
    )


def read(file: Path) -> list[RecordedRun]:
    """Read a history; the oldest run is the first. A file that does not exist is an empty history.

    Raises:
        DamagedHistoryError: a line is not the record of a run; the error names the line.
        OSError: the file cannot be read.
    """
    if not file.exists():
        return []
    lines = file.read_bytes().split(b"\n")
    return [_parsed(file, number, line) for number, line in enumerate(lines, 1) if line.strip()]


def append(file: Path, run: RecordedRun) -> None:
    """Add a run as the last line of the file, which is made if it does not exist. The other lines stay as they are.

    Raises:
        OSError: the file cannot be written.
    """
    line = json.dumps(asdict(run), allow_nan=False).encode() + b"\n"
    with file.open("ab+") as history:
        if history.tell():
            history.seek(-1, os.SEEK_END)
            if history.read(1) != b"\n":
                line = b"\n" + line
        history.write(line)


def losses(figures: Sequence[Figure], earlier: Sequence[RecordedRun], run: RecordedRun) -> list[Loss]:
    """The ratios that are worse than usual both in `run` and in the fit run before it.

    Args:
        figures: the figures of the benchmark.
        earlier: the runs before `run`, the oldest first.
        run: the run to judge. If its machine was unfit, the result is empty.

    Runs that do not have a ratio are skipped for this ratio.
    """
    if not run.fit:
        return []
    found = []
    compared = comparable(earlier, run)
    for figure in figures:
        *before, previous = [one.ratios[figure.key] for one in compared if figure.key in one.ratios] or [0.0]
        loss = _loss(figure, before, previous, run)
        if loss is not None:
            found.append(loss)
    return found


def suspects(figures: Sequence[Figure], earlier: Sequence[RecordedRun], run: RecordedRun) -> list[str]:
    """The keys of the ratios that are worse than usual in `run`, whatever the fit run before it says.

    If the next run finds the same, these ratios are losses.
    """
    if not run.fit:
        return []
    compared = comparable(earlier, run)
    return [
        figure.key
        for figure in figures
        if figure.key in run.ratios
        and _loss(
            figure,
            [one.ratios[figure.key] for one in compared if figure.key in one.ratios],
            run.ratios[figure.key],
            run,
        )
    ]


def comparable(earlier: Sequence[RecordedRun], run: RecordedRun) -> list[RecordedRun]:
    """The fit runs of `earlier` with the same benchmark, sizes and machine as `run`."""
    return [one for one in earlier if one.fit and (one.benchmark, one.machine) == (run.benchmark, run.machine)]


def machine() -> str:
    """The kind of this machine: system, processor, number of processors, version of Python, and core of the wheel."""
    version = ".".join(platform.python_version_tuple()[:2])
    return f"{platform.system()}, {_processor()}, {os.cpu_count()} processors, Python {version}, {CORE} core"


def _processor() -> str:
    """The kind of the first processor. Virtual machines often hide its name, so its numbers are part of its kind."""
    info = Path("/proc/cpuinfo")
    first = info.read_text("utf-8", "replace").partition("\n\n")[0] if info.exists() else ""
    known = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())}
    parts = [known[name] for name in ("model name", "model", "stepping", "cache size") if name in known]
    return " ".join([platform.machine(), *parts])


def _commit() -> str:
    """The hash of the commit of this repository, with "-dirty" if files differ from it; "unknown" without git."""
    command = ["git", "-C", str(_ROOT), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def _loss(figure: Figure, before: Sequence[float], previous: float, run: RecordedRun) -> Loss | None:
    """The loss of a ratio, if it is worse than usual both in `run` and in the run before it, which had `previous`.

    `before` has the values of the fit runs before these two.
    """
    if len(before) < LEAST or figure.key not in run.ratios:
        return None
    recent, here = before[-RECENT:], run.ratios[figure.key]
    usual = median(recent)
    deviation = median(abs(value - usual) for value in recent)
    allowed = max(usual * WORSE_PERCENT / 100, _UNEVEN * deviation)
    if not all(_is_worse(figure, value, usual, allowed) for value in (previous, here)):
        return None
    return Loss(figure.key, usual, previous, here, 100 * allowed / usual if usual else math.inf)


def _is_worse(figure: Figure, value: float, usual: float, allowed: float) -> bool:
    gate = figure.at_least if figure.at_least is not None else figure.at_most
    loss = {"greater": usual - value, "less": value - usual}.get(figure.better, 0.0)
    return loss > allowed and loss > _NOISE * (gate or 0.0)


def _parsed(file: Path, number: int, line: bytes) -> RecordedRun:
    try:
        found = json.loads(line)
        run = RecordedRun(**found)
        _check(run)
    except (ValueError, TypeError, KeyError) as error:
        reason = str(error) if isinstance(error, ValueError) else "fields are missing or wrong"
        raise DamagedHistoryError(
            f"{file}, line {number}, is not the record of a run ({reason}); nothing was changed in the file. Repair or "
            "remove the line, or name another file"
        ) from error
    return run


def _check(run: RecordedRun) -> None:
    texts = (run.date, run.commit, run.benchmark, run.machine)
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("date, commit, benchmark and machine must be texts")
    if not isinstance(run.fitness, dict) or not isinstance(run.fitness.get("unfit"), list):
        raise ValueError("fitness must have the list `unfit`")
    if not isinstance(run.ratios, dict) or not all(
        isinstance(ratio, int | float) and not isinstance(ratio, bool) and math.isfinite(ratio)
        for ratio in run.ratios.values()
    ):
        raise ValueError("ratios must be numbers")

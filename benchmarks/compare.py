"""`python -m benchmarks.compare BASE`: what a change did to the figures of a benchmark, measured on this machine.

The command checks out the commit BASE beside this tree, builds it there as `make` does, and runs the quick benchmark of
both trees by turns. Each figure is compared within its round, so a slow moment of the machine affects both. The result
is the mean change in percent with its 95 % confidence interval, by Student's distribution over the rounds' logarithmic
ratios. An interval that contains 0 shows no change.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from benchmarks.__main__ import BENCHMARKS, MISSED, OK
from benchmarks.figures import WORSE_PERCENT, Figure, Result
from benchmarks.narration import Narration

ROOT = Path(__file__).resolve().parents[1]

# two-sided 95 % quantiles of Student's distribution for 1 to 12 degrees of freedom
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179)

Measure = Callable[[], Result]


@dataclass(frozen=True, slots=True)
class FigureChange:
    """How a figure differs between two commits, in percent of its value at the base.

    Args:
        key: the key of the figure.
        percent: the mean change; above 0 the figure is greater than at the base.
        low: the lower end of the 95 % confidence interval.
        high: the upper end of the interval.
        base: the mean value at the base.
        here: the mean value in this tree.
        better: "greater" if a greater value is better, "less" if it is worse, "" for a figure without a gate.
    """

    key: str
    percent: float
    low: float
    high: float
    base: float
    here: float
    better: str

    @property
    def is_clear(self) -> bool:
        """Whether the interval does not contain 0."""
        return self.low > 0 or self.high < 0

    @property
    def is_worse(self) -> bool:
        """Whether the figure has a gate, and is clearly worse by more than is allowed."""
        loss = {"greater": -self.percent, "less": self.percent}.get(self.better, 0.0)
        return self.is_clear and loss > WORSE_PERCENT

    def __str__(self) -> str:
        verdict = "WORSE" if self.is_worse else "" if self.is_clear else "no change shown"
        span = f"{self.low:+.1f} to {self.high:+.1f} %"
        return f"{self.key:<36} {self.percent:+7.1f} %  ({span})  {self.base:g} -> {self.here:g}  {verdict}".rstrip()


def changes(figures: Sequence[Figure], rounds: Sequence[tuple[Result, Result]]) -> list[FigureChange]:
    """Compare the figures that both trees gave in every round; baselines are left out.

    Args:
        figures: the figures of the benchmark.
        rounds: the results of the base and of this tree, at least two rounds.
    """
    found = []
    for figure in figures:
        values = [(figure.value(base), figure.value(here)) for base, here in rounds]
        pairs = [(base, here) for base, here in values if base and here]
        if figure.key.startswith("baseline.") or len(pairs) < len(rounds):
            continue
        logs = [math.log(here / base) for base, here in pairs]
        middle, reach = fmean(logs), _reach(logs)
        low, percent, high = (round(100 * math.expm1(at), 2) for at in (middle - reach, middle, middle + reach))
        base, here = (float(f"{fmean(side):.4g}") for side in zip(*pairs, strict=True))
        found.append(FigureChange(figure.key, percent, low, high, base, here, figure.better))
    return found


def _reach(values: Sequence[float]) -> float:
    """Half of the width of the confidence interval of the mean."""
    quantile = _STUDENT[min(len(values) - 1, len(_STUDENT)) - 1]
    return quantile * stdev(values) / math.sqrt(len(values))


def by_turns(base: Measure, here: Measure, rounds: int, narration: Narration) -> list[tuple[Result, Result]]:
    """Measure both trees in each round. The order changes with every round."""
    found = []
    for number in range(rounds):
        results: dict[str, Result] = {}
        order = [("base", base), ("here", here)]
        for name, measure in order[:: -1 if number % 2 else 1]:
            narration.step(f"{name}, round {number + 1} of {rounds}")
            results[name] = measure()
        found.append((results["base"], results["here"]))
    return found


@contextlib.contextmanager
def tree_of(commit: str) -> Iterator[Path]:
    """Check out a commit into a temporary folder, and build it there. The folder is removed at the end.

    Raises:
        SystemExit: git does not know the commit, or it cannot be built.
    """
    with tempfile.TemporaryDirectory(prefix="wheel-sched-base-") as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        _checked([*git, "add", "--quiet", "--detach", str(tree), commit], commit)
        try:
            _checked([str(tree / ".ci" / "venv"), "dev"], commit)
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=False)


def _checked(command: list[str], commit: str) -> None:
    done = subprocess.run(command, stdout=sys.stderr, check=False)
    if done.returncode:
        raise SystemExit(f"error: {command[0]} failed for {commit!r}; nothing was measured")


def _quick(tree: Path, benchmark: str) -> Result:
    """The result of the quick benchmark of a tree."""
    command = [str(tree / ".venv" / "bin" / "python"), "-m", "benchmarks", benchmark, "--quick", "--json"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"error: {benchmark} failed in {tree}: {done.stderr[-1_000:]}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def main(argv: list[str] | None = None) -> int:
    """Compare this tree with a commit. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("--benchmark", choices=BENCHMARKS, default="store", help="by default store")
    parser.add_argument("--rounds", type=int, default=5, help="by default 5, at least 2")
    parser.add_argument("--check", action="store_true", help="exit 1 when a figure with a gate is clearly worse")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(argv)
    if options.rounds < 2:
        parser.error("an interval needs at least two rounds")
    figures: tuple[Figure, ...] = import_module(f"benchmarks.{options.benchmark}").FIGURES
    narration = Narration(2 * options.rounds)
    with tree_of(options.base) as tree:
        rounds = by_turns(
            lambda: _quick(tree, options.benchmark), lambda: _quick(ROOT, options.benchmark), options.rounds, narration
        )
    narration.close()
    found = changes(figures, rounds)
    unfit = sum(bool(result.get("fitness", {}).get("unfit")) for pair in rounds for result in pair)
    if options.json:
        listed = [asdict(change) | {"clear": change.is_clear, "worse": change.is_worse} for change in found]
        print(
            json.dumps({"benchmark": options.benchmark, "base": options.base, "unfit_runs": unfit, "changes": listed})
        )
    else:
        print(*found, sep="\n")
        if unfit:
            print(f"\nthe machine was not fit to measure in {unfit} of {2 * options.rounds} runs")
    return MISSED if options.check and any(change.is_worse for change in found) else OK


if __name__ == "__main__":
    raise SystemExit(main())

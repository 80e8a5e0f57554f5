"""`python -m benchmarks growth`: runs the cases, prints their tables, and writes the page and the pictures.

Progress goes to stderr. A case has no gate: its check says how far the model is from what was measured.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks import fitness
from benchmarks.growth.case import Case
from benchmarks.growth.plots import write_plots
from benchmarks.growth.tables import markdown
from benchmarks.narration import Narration
from benchmarks.report import write_section
from benchmarks.server import bench_server

# the names of the cases' modules; a module is imported when its case runs, since each case needs other packages
CASES = {
    "waiting": "waiting",
    "topics": "topics",
    "ordering-keys": "ordering_keys",
    "dispatchers": "dispatchers",
    "jobs": "jobs",
    "shards": "shards",
    "celery-workers": "celery_workers",
    "partitions": "partitions",
}


def case_of(name: str) -> Case:
    """The case of this name."""
    case: Case = import_module(f"benchmarks.growth.{CASES[name]}").CASE
    return case


def main(argv: list[str] | None = None) -> int:
    """Run the cases that were asked for. Returns 0."""
    options = _parser().parse_args(argv)
    results = measured([case_of(name) for name in options.case or CASES], quick=options.quick)
    if options.json:
        print(json.dumps(results))
    elif options.markdown is None:
        print("\n\n".join(f"## {name}\n\n{markdown(result)}" for name, result in results.items()))
    if options.markdown is not None:
        for name, result in results.items():
            write_section(options.markdown, name, markdown(result))
    if options.plots is not None:
        for path in write_plots(results, options.plots):
            print(f"wrote {path}", file=sys.stderr)
    return 0


def measured(cases: Sequence[Case], *, quick: bool) -> dict[str, Any]:
    """Measure the cases, and the machine's fitness before and after each. Returns the results by the cases' names."""
    sizes = {case.name: case.quick if quick else case.full for case in cases}
    narration = Narration(sum(len(each.measured) for each in sizes.values()))
    around = _surroundings(quick)
    results, before = {}, fitness.measure()
    for case in cases:
        result, after = case.run(sizes[case.name], narration), fitness.measure()
        results[case.name] = {**result, "surroundings": {**around, "unfit": fitness.judged(before, after)["unfit"]}}
        before = after
    narration.close()
    return results


def _surroundings(quick: bool) -> dict[str, Any]:
    with bench_server() as server:
        label = server.label()
    return {"python": platform.python_version(), "server": label, "cpus": os.cpu_count() or 1, "quick": quick}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks growth", description="Measure how cost grows.")
    parser.add_argument("--case", action="append", choices=tuple(CASES), help="only this case; may be repeated")
    parser.add_argument("--quick", action="store_true", help="smaller sizes, all cases done in about a minute")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--markdown", type=Path, metavar="PAGE", help="write the tables into PAGE")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="write SVG files and growth.json into DIR")
    return parser

"""The command line: one JSON object or a table on stdout, everything else on stderr.

Exit code 0 when it has measured; with `--check` 1 when a gate is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks import dispatch, store
from benchmarks.figures import Figure, missed
from benchmarks.report import markdown, table, write_section


def main(argv: list[str] | None = None) -> int:
    """Run one benchmark; the exit code."""
    options = _parser().parse_args(argv)
    figures: tuple[Figure, ...]
    result: dict[str, Any]
    if options.benchmark == "store":
        figures, result = store.FIGURES, store.run(store.QUICK if options.quick else store.FULL)
    elif options.benchmark == "spark":
        from benchmarks import spark  # needs wheel-sched[spark] only when it is meant

        figures, result = spark.FIGURES, spark.run(spark.QUICK if options.quick else spark.FULL)
    else:
        figures, result = dispatch.FIGURES, dispatch.run(dispatch.QUICK if options.quick else dispatch.FULL)
    problems = missed(figures, result)
    result |= {"quick": options.quick, "missed": problems}
    if options.json:
        print(json.dumps(result))
    elif options.markdown is None:
        print(table(figures, result))
    if options.markdown == "-":
        print(markdown(figures, result))
    elif options.markdown:
        write_section(Path(options.markdown), options.benchmark, markdown(figures, result))
    if options.check:
        for problem in problems:
            print(f"gate missed: {problem}", file=sys.stderr)
    return 1 if options.check and problems else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="What the store and the dispatcher do.")
    parser.add_argument("benchmark", choices=("store", "dispatch", "spark"))
    parser.add_argument("--quick", action="store_true", help="smaller numbers, an answer within 40 seconds")
    parser.add_argument("--check", action="store_true", help="exit 1 when a gate is missed, and say which")
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="one JSON object on stdout")
    shape.add_argument(
        "--markdown", nargs="?", const="-", metavar="PAGE", help="a Markdown table on stdout, or into PAGE's section"
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main())

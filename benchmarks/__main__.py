"""The command line: one JSON object or a table on stdout, everything else on stderr.

Exit code 0 when it has measured; with `--check` 1 when a gate is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks import dispatch, store, wheel
from benchmarks.figures import Figure, missed
from benchmarks.report import markdown, table, write_section
from benchmarks.wheel import plots
from benchmarks.wheel.tables import full_table


def main(argv: list[str] | None = None) -> int:
    """Run one benchmark; the exit code."""
    options = _parser().parse_args(argv)
    figures: tuple[Figure, ...]
    result: dict[str, Any]
    if options.benchmark == "store":
        figures, result = store.FIGURES, store.run(store.QUICK if options.quick else store.FULL)
    elif options.benchmark == "wheel":
        figures = (*wheel.FIGURES, *(wheel.JVM_FIGURES if options.jvm else ()))
        result = wheel.run(wheel.QUICK if options.quick else wheel.FULL, jvm=options.jvm)
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
        page = Path(options.markdown)
        if options.benchmark == "wheel":
            write_section(page, "wheel", markdown(wheel.FIGURES, result))
            write_section(page, "wheel, all", full_table(result))
            if options.jvm:
                write_section(page, "wheel, jvm", markdown(wheel.JVM_FIGURES, result))
        else:
            write_section(page, options.benchmark, markdown(figures, result))
    if options.plots is not None:
        for path in plots.write(result, Path(options.plots)):
            print(f"wrote {path}", file=sys.stderr)
    if options.check:
        for problem in problems:
            print(f"gate missed: {problem}", file=sys.stderr)
    return 1 if options.check and problems else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="What the store, the dispatcher and the wheel do."
    )
    parser.add_argument("benchmark", choices=("store", "dispatch", "wheel"))
    parser.add_argument("--quick", action="store_true", help="smaller numbers, an answer within 50 seconds")
    parser.add_argument("--jvm", action="store_true", help="wheel: Kafka's and Netty's timers too (Java 17, Maven)")
    parser.add_argument("--plots", metavar="DIR", help="wheel: SVG files into DIR (needs matplotlib)")
    parser.add_argument("--check", action="store_true", help="exit 1 when a gate is missed, and say which")
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="one JSON object on stdout")
    shape.add_argument(
        "--markdown", nargs="?", const="-", metavar="PAGE", help="a Markdown table on stdout, or into PAGE's section"
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main())

"""The command line of the benchmarks: it prints one JSON object or a table on stdout, and progress on stderr.

A benchmark is a module of this package with `FIGURES`, `QUICK`, `FULL` and `run(sizes)`. It may also have
`sections(result)` (more tables for docs/benchmarks.md, by name), `write_plots(result, folder)`, and, when it also
measures on the JVM, `JVM_FIGURES` and `run(sizes, jvm=True)`. With `--check` the exit code is 1 when a figure misses
its gate, and 3 when the machine was not fit to measure. Otherwise it is 0.
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks import fitness
from benchmarks.figures import Figure, missed
from benchmarks.report import markdown, reasons, table, write_section

# Imported by name: a benchmark needs only its own packages.
BENCHMARKS = ("store", "dispatch", "wheel", "purgatory", "apscheduler", "celery", "spark", "kafka", "simulator")

OK, MISSED, UNFIT = 0, 1, 3


def main(argv: list[str] | None = None) -> int:
    """Run one benchmark. Returns the exit code."""
    parser = _parser()
    options = parser.parse_args(argv)
    benchmark = import_module(f"benchmarks.{options.benchmark}")
    sizes = benchmark.QUICK if options.quick else benchmark.FULL
    figures: tuple[Figure, ...] = benchmark.FIGURES
    if options.jvm:
        if not hasattr(benchmark, "JVM_FIGURES"):
            parser.error(f"{options.benchmark} has no comparison with the JVM")
        figures += benchmark.JVM_FIGURES
    if options.plots is not None and not hasattr(benchmark, "write_plots"):
        parser.error(f"{options.benchmark} has no plots")
    before = fitness.measure()
    result: dict[str, Any] = benchmark.run(sizes, jvm=True) if options.jvm else benchmark.run(sizes)
    problems = missed(figures, result)
    result |= {"quick": options.quick, "missed": problems, "fitness": fitness.judged(before, fitness.measure())}
    if options.json:
        print(json.dumps(result))
    elif options.markdown is None:
        print(table(figures, result))
    if options.markdown == "-":
        print(markdown(figures, result))
    elif options.markdown is not None:
        page = Path(options.markdown)
        write_section(page, options.benchmark, markdown(benchmark.FIGURES, result))
        if options.jvm:
            write_section(page, f"{options.benchmark}, jvm", markdown(benchmark.JVM_FIGURES, result))
        for name, text in benchmark.sections(result).items() if hasattr(benchmark, "sections") else ():
            write_section(page, name, text)
    if options.plots is not None:
        for path in benchmark.write_plots(result, Path(options.plots)):
            print(f"wrote {path}", file=sys.stderr)
    unfit = reasons(result)
    for reason in unfit:
        print(f"this machine is not fit to measure: {reason}", file=sys.stderr)
    if not options.check:
        return OK
    if unfit:
        print("no gate was judged: measure again when nothing else runs here", file=sys.stderr)
        return UNFIT
    for problem in problems:
        print(f"gate missed: {problem}", file=sys.stderr)
    return MISSED if problems else OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Measure a part of the project beside its peers."
    )
    parser.add_argument("benchmark", choices=BENCHMARKS)
    parser.add_argument("--quick", action="store_true", help="smaller sizes, done in about a minute")
    parser.add_argument(
        "--jvm", action="store_true", help="wheel: also Kafka's and Netty's timers (needs Java 17 and Maven)"
    )
    parser.add_argument(
        "--plots", nargs="?", const=".", metavar="DIR", help="write SVG files into DIR, by default into this folder"
    )
    parser.add_argument(
        "--check", action="store_true", help="exit 1 when a gate is missed, and name it; 3 when the machine is unfit"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--markdown", nargs="?", const="-", metavar="PAGE", help="print a Markdown table, or write it into PAGE"
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main())

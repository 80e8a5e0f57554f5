"""The command line of the benchmarks: it prints one JSON object or a table on stdout, and progress on stderr.

A benchmark is a module of this package with `FIGURES`, `QUICK`, `FULL`, `run(sizes)` and `measured(sizes)` (how long
each figure of such a run is measured). It may also have `sections(result)` (more tables for docs/internals/figures.md,
by name), `write_plots(result, folder)`, and, when it also measures on the JVM, `JVM_FIGURES` and
`run(sizes, jvm=True)`. `--help` lists the exit codes.

`growth` is different: it has cases with models, and a command line of its own (`benchmarks.growth.command`).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks import agreement, fitness, history
from benchmarks.figures import Figure, Result, missed
from benchmarks.history import Loss, RecordedRun
from benchmarks.report import markdown, reasons, table, write_section

# Imported by name: a benchmark needs only its own packages.
BENCHMARKS = (
    "store",
    "dispatch",
    "wheel",
    "purgatory",
    "apscheduler",
    "celery",
    "spark",
    "kafka",
    "simulator",
    "dashboard",
    "fairness",
)

OK, MISSED, UNUSABLE, UNFIT, WORSE = range(5)
_EXIT_CODES = """exit codes:
  0  measured; with --check: every gate is kept
  1  with --check: a gate is missed (not with --check losses)
  2  the arguments, the history or the other run cannot be used, and nothing was measured
  3  with --check: the machine was not fit to measure, and nothing was judged
  4  with --check and --history: every gate is kept, but in this run and in the fit run before it a ratio was more than
     10 % worse than the median of the recent fit runs on this kind of machine (a ratio whose runs differ much may be
     worse by more). If a ratio is worse in this run only, the command measures once more before it answers"""


def main(argv: list[str] | None = None) -> int:
    """Run one benchmark. Returns the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    if arguments[:1] == ["growth"]:  # has cases and models instead of figures and gates
        code: int = import_module("benchmarks.growth.command").main(arguments[1:])
        return code
    parser = _parser()
    options = parser.parse_args(arguments)
    benchmark = import_module(f"benchmarks.{options.benchmark}")
    figures: tuple[Figure, ...] = benchmark.FIGURES
    if options.jvm:
        if not hasattr(benchmark, "JVM_FIGURES"):
            parser.error(f"{options.benchmark} has no comparison with the JVM")
        figures += benchmark.JVM_FIGURES
    if options.plots is not None and not hasattr(benchmark, "write_plots"):
        parser.error(f"{options.benchmark} has no plots")
    other: Result | None = None
    if options.against is not None:
        try:
            other = agreement.read(options.against, figures)
        except agreement.UnusableRunError as error:
            print(f"error: {error}; nothing was measured", file=sys.stderr)
            return UNUSABLE
    earlier: list[RecordedRun] = []
    if options.history is not None:
        try:
            earlier = history.read(options.history)
            options.history.open("ab").close()  # if the file cannot be written, the measurement does not begin
        except (history.DamagedHistoryError, OSError) as error:
            print(f"error: {error}; nothing was measured", file=sys.stderr)
            return UNUSABLE
    result = _measure(options, benchmark, figures)
    worse: list[Loss] = []
    if options.history is not None:
        run, worse = _recorded(options.history, earlier, figures, result, options.benchmark)
        suspects = [] if worse or options.check is None else history.suspects(figures, earlier, run)
        if suspects:
            print(f"worse in this run: {', '.join(suspects)}; measuring once more", file=sys.stderr)
            result = _measure(options, benchmark, figures)
            _, worse = _recorded(options.history, [*earlier, run], figures, result, options.benchmark)
    _report(options, benchmark, figures, result)
    if other is not None:
        print(agreement.table(agreement.compared(figures, result, other)), file=sys.stderr)
    problems, unfit = result["missed"], reasons(result)
    for reason in unfit:
        print(f"this machine is not fit to measure: {reason}", file=sys.stderr)
    if options.check is None:
        return OK
    if unfit:
        print("nothing was judged: measure again when nothing else runs here", file=sys.stderr)
        return UNFIT
    for problem in problems:
        print(f"gate missed: {problem}", file=sys.stderr)
    if problems and options.check != "losses":
        return MISSED
    return WORSE if worse else OK


def _measure(options: argparse.Namespace, benchmark: Any, figures: Sequence[Figure]) -> dict[str, Any]:
    """Run the benchmark. Returns its result, with the gates that were missed and the fitness of the machine."""
    sizes = benchmark.QUICK if options.quick else benchmark.FULL
    before = fitness.measure()
    result: dict[str, Any] = benchmark.run(sizes, jvm=True) if options.jvm else benchmark.run(sizes)
    return result | {
        "measured": {key: one.in_json() for key, one in benchmark.measured(sizes).items()},
        "quick": options.quick,
        "missed": missed(figures, result),
        "fitness": fitness.judged(before, fitness.measure()),
    }


def _report(options: argparse.Namespace, benchmark: Any, figures: Sequence[Figure], result: Result) -> None:
    """Print the result, and write it into the page and the plots, as the options ask."""
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


def _recorded(
    file: Path, earlier: Sequence[RecordedRun], figures: Sequence[Figure], result: Result, benchmark: str
) -> tuple[RecordedRun, list[Loss]]:
    """Add the run to its history, and print what is worse. Returns the run and the ratios that are worse."""
    run = history.run_of(benchmark, figures, result)
    history.append(file, run)
    found = history.losses(figures, earlier, run)
    for loss in found:
        print(f"worse again: {loss}", file=sys.stderr)
    known = len(history.comparable(earlier, run))
    if run.fit and known <= history.LEAST:
        needed = history.LEAST + 1
        print(
            f'no ratio can be "worse again" yet: {file} has {known} of {needed} earlier fit runs like this one',
            file=sys.stderr,
        )
    return run, found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure a part of the project beside its peers.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "benchmark", choices=BENCHMARKS, help="what is measured; `growth --help` has one more, without gates"
    )
    parser.add_argument("--quick", action="store_true", help="smaller sizes, done in about a minute")
    parser.add_argument(
        "--jvm", action="store_true", help="wheel: also Kafka's and Netty's timers (needs Java 17 and Maven)"
    )
    parser.add_argument(
        "--plots", nargs="?", const=".", metavar="DIR", help="write SVG files into DIR, by default into this folder"
    )
    parser.add_argument(
        "--check",
        nargs="?",
        const="all",
        choices=("all", "losses"),
        help="exit 1 when a gate is missed, and name it; 3 when the machine is unfit; losses: judge no gates",
    )
    parser.add_argument(
        "--history",
        type=Path,
        metavar="FILE",
        help="add the ratios of this run to FILE (JSON Lines); with --check exit 4 when one is worse again",
    )
    parser.add_argument(
        "--against",
        type=Path,
        metavar="FILE",
        help="also compare the ratios with those of another run, whose JSON is in FILE; the table goes to stderr",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--markdown", nargs="?", const="-", metavar="PAGE", help="print a Markdown table, or write it into PAGE"
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main())

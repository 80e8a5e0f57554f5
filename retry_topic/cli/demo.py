"""`wheel-sched demo`: runs the demo. Progress goes to stderr, the result to stdout."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import click

from retry_topic.demo.report import as_text
from retry_topic.demo.run import FOLDER, Progress, run
from wheel_sched.cli.options import json_option


@click.command()
@click.option(
    "--input",
    "input_path",
    type=click.Path(exists=True, dir_okay=False),
    help="Your own records (JSON Lines).",
)
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="Number of records.")
@click.option(
    "--folder",
    type=click.Path(file_okay=False),
    metavar="FOLDER",
    help="For the server's data: a new or empty folder.",
)
@json_option
def demo(input_path: str | None, count: int | None, folder: str | None, as_json: bool) -> int:
    """Run a demo: an embedded server, messages that fail, retries at their due time, a killed service.

    The last number ("duplicated" with --json) counts records that the endpoint accepted twice: its first answer came
    too late, so the consumer tried again. The exit code is 0 when every record is delivered or dead, and none was
    early.

    \b
    Examples:
      wheel-sched demo
      wheel-sched demo --input events.jsonl --json
    """
    place = Path(folder) if folder else FOLDER
    show = _bar if sys.stderr.isatty() else _lines
    report = run(input_path=input_path, count=count, folder=place, progress=show())
    if sys.stderr.isatty():
        sys.stderr.write("\r\033[K")
    text = json.dumps(report.as_dict()) if as_json else as_text(report, f"embedded:{place}")
    sys.stdout.write(text + "\n")
    return 0 if report.accounted else 1


def _bar() -> Progress:
    def show(done: int, total: int, words: str) -> None:
        filled = 30 * done // max(total, 1)
        bar = "#" * filled + "." * (30 - filled)
        if words.startswith("killed"):
            sys.stderr.write(f"\r\033[K{words}\n")
        else:
            sys.stderr.write(f"\r\033[K[{bar}] {done:,}/{total:,}  {words}"[:118])
        sys.stderr.flush()

    return show


def _lines() -> Progress:
    last = 0.0

    def show(done: int, total: int, words: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= 2 or words.startswith("killed"):
            last = now
            sys.stderr.write(f"{done:,}/{total:,} accounted for; {words}\n")
            sys.stderr.flush()

    return show

"""`wheel-sched demo`: runs the demo. Progress goes to stderr, the result to stdout."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from retry_topic.demo.report import as_text
from retry_topic.demo.run import FOLDER, Progress, run


def demo(*, input_path: str | None, count: int | None, as_json: bool, folder: Path = FOLDER) -> int:
    """Run the demo; return the exit code. It is 0 only when every record is delivered or dead and none was early."""
    show = _bar if sys.stderr.isatty() else _lines
    report = run(input_path=input_path, count=count, folder=folder, progress=show())
    if sys.stderr.isatty():
        sys.stderr.write("\r\033[K")
    text = json.dumps(report.as_dict()) if as_json else as_text(report, f"embedded:{folder}")
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

"""Commands that write a file replace an existing one only with --force or after a question."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from wheel_sched.cli.failing import CommandFailed
from wheel_sched.cli.options import confirm

force_option = click.option(
    "--force",
    is_flag=True,
    help="Replace an existing FILE without a question.",
)


def may_replace(file: str, force: bool) -> bool:
    """Whether `file` exists; then it may be replaced.

    Raises:
        CommandFailed: `file` exists and may not be replaced, or it is `-`; nothing was written.
    """
    if file == "-":
        raise CommandFailed("- is no name of a file here: nothing was written; give a name (./- for a file called -)")
    there = Path(file).exists()
    if there and not force and not sys.stdin.isatty():
        raise CommandFailed(f"{file} exists: nothing was written; give another name, or --force to replace it")
    if there:
        confirm(f"{file} exists. Replace it when the new one is whole?", force)
    return there

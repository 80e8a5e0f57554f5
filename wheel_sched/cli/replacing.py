"""Commands that write a file: one that is there is replaced when somebody has said so, and never unasked."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from wheel_sched.cli.failing import CommandFailed
from wheel_sched.cli.options import confirm

force_option = click.option(
    "--force",
    is_flag=True,
    help="Replace FILE when it exists; without it a terminal asks, and where nobody can answer nothing is written.",
)


def may_replace(file: str, force: bool) -> bool:
    """Whether there is a `file`, which may be replaced then.

    Raises:
        CommandFailed: it may not be, or `file` is `-`, which is no name here; nothing was written.
    """
    if file == "-":
        raise CommandFailed("- is no name of a file here: nothing was written; give one (./- for a file of that name)")
    there = Path(file).exists()
    if there and not force and not sys.stdin.isatty():
        raise CommandFailed(f"{file} exists: nothing was written; give another name, or --force to replace it")
    if there:
        confirm(f"{file} exists. Replace it when the new one is whole?", force)
    return there

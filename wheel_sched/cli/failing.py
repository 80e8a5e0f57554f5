"""How commands end: each error has an exit code and a line on stderr.

    0    done                          69   the store or the broker cannot be reached (EX_UNAVAILABLE)
    1    failed, or problems found     130  interrupted by Ctrl-C
    2    wrong usage or configuration, or a package is not installed

A command returns None (0) or its exit code.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import click

from wheel_sched.cli.output import blame, note
from wheel_sched.errors import (
    BrokerUnavailable,
    ConfigError,
    EmbeddedServerError,
    Rejected,
    StoreUnavailable,
    WheelSchedError,
)
from wheel_sched.escaping import safe

OK, FAILED, USAGE, UNAVAILABLE, INTERRUPTED = 0, 1, 2, 69, 130


def code_of(error: BaseException) -> int:
    """The exit code of an error."""
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return INTERRUPTED
    if isinstance(error, click.ClickException):
        return error.exit_code
    if isinstance(error.__cause__, ModuleNotFoundError):  # the error names the extra to install
        return USAGE
    if isinstance(error, StoreUnavailable | BrokerUnavailable | EmbeddedServerError):
        return UNAVAILABLE
    if isinstance(error, ConfigError | Rejected):
        return USAGE
    return FAILED


@contextlib.contextmanager
def as_usage() -> Iterator[None]:
    """Show a `Rejected` from the `with` block as wrong usage, with the line that says how to use the command."""
    try:
        yield
    except Rejected as error:
        raise click.UsageError(str(error)) from error


def drop_output() -> None:
    """Discard all further output on stdout. Commands call this when the reader of stdout has closed the pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def is_unread() -> bool:
    """Whether the reader of stdout has closed the pipe. On Windows, which cannot tell, always True.

    A BrokenPipeError alone does not show this, because it may also come from a network connection.
    """
    if not hasattr(select, "poll"):  # Windows
        return True
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def in_sight(error: click.ClickException) -> click.ClickException:
    """Make the message of an error safe to show: escaped and without passwords. Returns the same error."""
    error.message = safe(error.message)  # type: ignore[misc]  # click declares it final
    return error


def guarded(run: Callable[[], Any]) -> NoReturn:
    """Run a command, and end the process with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without Unicode shows escapes
    code: Any = OK
    try:
        code = run()
        sys.stdout.flush()
    except BrokenPipeError:  # the flush failed after the command had ended: its exit code stays
        drop_output()
    except (click.Abort, KeyboardInterrupt) as error:
        sys.stderr.write("\ninterrupted\n")
        sys.exit(code_of(error))
    except click.ClickException as error:
        in_sight(error).show()
        sys.exit(error.exit_code)
    except WheelSchedError as error:
        blame("wheel-sched", error)
        sys.exit(code_of(error))
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        note(f"wheel-sched: {place}{error.strerror or error}")
        sys.exit(FAILED)
    sys.exit(code if isinstance(code, int) else OK)

"""`celery wheel`: shows and changes the tasks and the schedule in the store. It needs no running worker.

Every `celery` command loads this module, so it imports click, the table of commands and light helpers, and no more.
"""

from __future__ import annotations

import sys
from typing import Any, NoReturn

import click

from wheel_sched.cli.failing import OK, UNAVAILABLE, code_of, drop_output, in_sight, is_unread
from wheel_sched.cli.lazy import LazyGroup
from wheel_sched.cli.output import blame
from wheel_sched.errors import BrokerUnavailable, WheelSchedError
from wheel_sched.extensions import Lazy

_HERE = "wheel_sched_celery.cli"
COMMANDS = {
    "list": Lazy(f"{_HERE}.listing:list_tasks", "List held tasks in order of their ETA."),
    "show": Lazy(f"{_HERE}.listing:show", "Show everything about one task."),
    "cancel": Lazy(f"{_HERE}.changing:cancel", "Remove held tasks and announce that they are revoked."),
    "reschedule": Lazy(f"{_HERE}.changing:reschedule", "Give held tasks another ETA."),
    "run-now": Lazy(f"{_HERE}.changing:run_now", "Let held tasks run now."),
    "stats": Lazy(f"{_HERE}.stats:stats", "Count tasks by queue and state; show what is due next."),
    "purge": Lazy(f"{_HERE}.changing:purge", "Remove held tasks for good."),
    "drain": Lazy(f"{_HERE}.changing:drain", "Send all held tasks to their queues, before an uninstall."),
    "beat": Lazy(f"{_HERE}.beat:beat", "Periodic tasks: list, add, pause, run, remove and import entries."),
    "doctor": Lazy(f"{_HERE}.doctor:doctor", "Check everything that a guarantee depends on."),
}


class WheelGroup(LazyGroup):
    """Commands with the exit codes and the error lines of `wheel-sched`."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            code = super().invoke(ctx)
            sys.stdout.flush()  # at its end celery would fail over a broken pipe
        except BrokenPipeError as error:
            if not is_unread():  # so the broken pipe is the broker's connection
                self._away(ctx, error)
            drop_output()  # the reader of a pipe has seen enough
            code = OK
        except WheelSchedError as error:
            blame("celery wheel", error)
            ctx.exit(code_of(error))
        except click.ClickException as error:
            raise in_sight(error) from None  # celery shows it
        except Exception as error:
            kind = type(error)
            if (kind.__module__, kind.__name__) != ("kombu.exceptions", "OperationalError"):  # kombu is not loaded here
                raise
            self._away(ctx, error)
        ctx.exit(code if isinstance(code, int) else OK)

    def _away(self, ctx: click.Context, error: Exception) -> NoReturn:
        blame("celery wheel", BrokerUnavailable(f"the broker is away: {error}"))
        ctx.exit(UNAVAILABLE)


@click.group(cls=WheelGroup, lazy=COMMANDS, name="wheel")
def wheel() -> None:
    """ETA tasks that wait in the delay store, and periodic tasks.

    \b
    Examples:
      celery -A proj wheel list --queue mail --until +1h
      celery -A proj wheel show 7f3c2a9e-...
      celery -A proj wheel cancel --task 'proj.tasks.remind*' --dry-run
      celery -A proj wheel reschedule 7f3c2a9e-... --at 2026-12-24T18:00:00+01:00
      celery -A proj wheel beat list
      celery -A proj wheel doctor

    INSTANT is `2h` (ago), `+5m` (from now), `now` or RFC 3339 with a zone. Exit codes: 0 done, 1 failed or problems
    found, 2 wrong usage, 69 store or broker unreachable.
    """

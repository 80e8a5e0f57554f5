"""`celery wheel beat`: shows and changes the entries of the schedule, and imports them from other schedulers."""

from __future__ import annotations

import click

from wheel_sched.cli.lazy import LazyGroup
from wheel_sched.extensions import Lazy

_HERE = "wheel_sched_celery.cli.beat"
COMMANDS = {
    "list": Lazy(f"{_HERE}.listing:list_entries", "List the entries of the schedule."),
    "show": Lazy(f"{_HERE}.listing:show", "Show everything about one entry."),
    "next": Lazy(f"{_HERE}.listing:next_runs", "Show the next runs of all entries, or of one."),
    "add": Lazy(f"{_HERE}.adding:add", "Add an entry, or give it another definition."),
    "pause": Lazy(f"{_HERE}.changing:pause", "Let entries wait until `resume`."),
    "resume": Lazy(f"{_HERE}.changing:resume", "Let entries run again."),
    "run-now": Lazy(f"{_HERE}.changing:run_now", "Send the tasks of entries once more, now."),
    "remove": Lazy(f"{_HERE}.changing:remove", "Remove entries: they never run again."),
    "import": Lazy(f"{_HERE}.importing:import_entries", "Take over entries of redbeat or django-celery-beat."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS, name="beat")
def beat() -> None:
    """Periodic tasks: the entries of the app's schedule.

    \b
    Examples:
      celery -A proj wheel beat list
      celery -A proj wheel beat next 10
      celery -A proj wheel beat add report proj.report '0 4 * * *' --kwargs '{"region": "eu"}'
      celery -A proj wheel beat pause 'mail-*' --dry-run
      celery -A proj wheel beat import redbeat redis://old:6379/0

    No worker needs to be up. A change takes effect at once in all workers.
    """

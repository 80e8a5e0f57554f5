"""`wheel-sched aps`: APScheduler jobs in a shared store; found by the command line by name alone."""

from __future__ import annotations

import click

from wheel_sched.cli.extensions import Lazy
from wheel_sched.cli.lazy import LazyGroup

_HERE = "wheel_sched_apscheduler.cli"

HELP = """APScheduler jobs in a shared store: look, mend, move.

\b
Examples:
  wheel-sched aps jobs                                what is scheduled, in order of next run time
  wheel-sched aps run-now nightly-report
  wheel-sched aps quarantine list                     what could not be loaded, and why
  wheel-sched aps quarantine repoint app.old:f app.new:f
  wheel-sched aps migrate --from redis://localhost:6379/0 --dry-run

No command imports a job's function. The namespace is "apscheduler" unless you name another. Commands that write jobs
sign them with the secret of WHEEL_SCHED_APS_SECRET, over embedded:FOLDER with the one kept there, as the schedulers do.
"""


@click.group(
    cls=LazyGroup,
    lazy={
        "jobs": Lazy(f"{_HERE}.looking:jobs", "List jobs, in order of next run time."),
        "show": Lazy(f"{_HERE}.looking:show", "All that is known of one job."),
        "in-flight": Lazy(f"{_HERE}.looking:in_flight", "What runs now, where, and how long its lease is."),
        "history": Lazy(f"{_HERE}.looking:history", "How the last runs went."),
        "run-now": Lazy(f"{_HERE}.changing:run_now", "Make jobs due at once."),
        "pause": Lazy(f"{_HERE}.changing:pause", "Take jobs out of the schedule and keep them."),
        "resume": Lazy(f"{_HERE}.changing:resume", "Schedule paused jobs from now on."),
        "remove": Lazy(f"{_HERE}.changing:remove", "Remove jobs for good."),
        "quarantine": Lazy(f"{_HERE}.quarantine:quarantine", "Jobs that could not be loaded: list, retry, repoint."),
        "migrate": Lazy(f"{_HERE}.moving:migrate", "Copy the jobs of a stock store, and verify them."),
        "export": Lazy(f"{_HERE}.moving:export", "Copy the jobs back into a stock store."),
    },
    help=HELP,
)
def aps() -> None:
    """Group of the commands about APScheduler jobs."""

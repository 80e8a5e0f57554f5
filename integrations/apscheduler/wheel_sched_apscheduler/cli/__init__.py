"""`wheel-sched aps`: APScheduler jobs in a shared store."""

from __future__ import annotations

import click

from wheel_sched.cli.lazy import LazyGroup
from wheel_sched.extensions import Lazy

_HERE = "wheel_sched_apscheduler.cli"

HELP = """APScheduler jobs in a shared store: list, change, migrate.

\b
Examples:
  wheel-sched aps list                                all jobs, in order of next run time
  wheel-sched aps run-now nightly-report
  wheel-sched aps list --state quarantined            jobs that no process could run, and why
  wheel-sched aps repoint app.old:f app.new:f
  wheel-sched aps migrate --from redis://localhost:6379/0 --dry-run

No command imports a job's function. The namespace is "apscheduler" unless you name another. Commands that write jobs
sign them as the schedulers do: with the secret in WHEEL_SCHED_APS_SECRET, or with the one kept in embedded:FOLDER.
"""


@click.group(
    cls=LazyGroup,
    lazy={
        "list": Lazy(f"{_HERE}.queries:list_jobs", "List jobs, in order of next run time."),
        "show": Lazy(f"{_HERE}.queries:show", "Show one job and its last runs."),
        "in-flight": Lazy(f"{_HERE}.queries:in_flight", "List the runs under way, with process and lease."),
        "history": Lazy(f"{_HERE}.queries:history", "List how the last runs ended."),
        "run-now": Lazy(f"{_HERE}.changes:run_now", "Make jobs due at once."),
        "pause": Lazy(f"{_HERE}.changes:pause", "Take jobs out of the schedule and keep them."),
        "resume": Lazy(f"{_HERE}.changes:resume", "Schedule paused jobs from now on."),
        "delete": Lazy(f"{_HERE}.changes:delete", "Delete jobs for good."),
        "release": Lazy(f"{_HERE}.changes:release", "Schedule quarantined jobs again."),
        "repoint": Lazy(f"{_HERE}.changes:repoint", "Give the jobs of a function another function."),
        "migrate": Lazy(f"{_HERE}.migration:migrate", "Copy the jobs of a stock store, and verify them."),
        "export": Lazy(f"{_HERE}.migration:export", "Copy the jobs back into a stock store."),
    },
    help=HELP,
)
def aps() -> None:
    """The group of all commands about APScheduler jobs."""

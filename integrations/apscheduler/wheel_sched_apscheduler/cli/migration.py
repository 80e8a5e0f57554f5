"""`wheel-sched aps migrate | export`: copy jobs from a stock store, and back."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from wheel_sched.cli.failing import FAILED, OK
from wheel_sched.cli.options import Session, dry_run_option, json_option, pass_session
from wheel_sched.cli.output import emit, note
from wheel_sched.management.wording import amount
from wheel_sched_apscheduler.codec import JobCodec
from wheel_sched_apscheduler.management.opening import opened_jobs
from wheel_sched_apscheduler.migration import MigrationReport, open_stock, trigger_classes
from wheel_sched_apscheduler.migration import export as export_jobs
from wheel_sched_apscheduler.migration import migrate as migrate_jobs

jobs_key_option = click.option("--jobs-key", default="apscheduler.jobs", show_default=True, help="Of a Redis store.")
run_times_key_option = click.option(
    "--run-times-key", default="apscheduler.run_times", show_default=True, help="Of a Redis store."
)
table_option = click.option("--table", default="apscheduler_jobs", show_default=True, help="Of an SQL store.")


@click.command()
@click.option("--from", "source", metavar="URL", required=True, help="redis://... or an SQLAlchemy URL.")
@jobs_key_option
@run_times_key_option
@table_option
@click.option(
    "--allow-class",
    "classes",
    multiple=True,
    metavar="MODULE:NAME",
    help="A class the pickled jobs may hold, besides APScheduler's triggers and plain data: a trigger, or with "
    "--allow-pickle an argument. Repeatable.",
)
@click.option(
    "--allow-pickle",
    is_flag=True,
    help="Store arguments that are no plain data as pickle; such jobs run only where allow_pickle=True is set.",
)
@click.option(
    "--allow",
    multiple=True,
    metavar="MODULE[:NAME]",
    help="Modules and functions that jobs may name, as in allow=[...] of the store. Repeatable.",
)
@dry_run_option
@json_option
@pass_session
def migrate(
    session: Session,
    source: str,
    jobs_key: str,
    run_times_key: str,
    table: str,
    classes: tuple[str, ...],
    allow_pickle: bool,
    allow: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> int:
    """Copy the jobs of a stock RedisJobStore or SQLAlchemyJobStore, and verify each copy.

    \b
    Examples:
      wheel-sched aps migrate --from redis://localhost:6379/0 --dry-run
      wheel-sched --store redis://prod:6379 aps migrate --from sqlite:///jobs.sqlite

    Stop the old schedulers first. This command does not change the old store. Stock jobs are pickled. An unpickler
    that makes only triggers, plain data and what --allow-class names reads them, and imports no other code.
    """
    stock = open_stock(source, jobs_key=jobs_key, run_times_key=run_times_key, table=table)
    codec: dict[str, Any] = {"allow": allow or None, "allow_pickle": allow_pickle, "triggers": trigger_classes(classes)}
    if dry_run:
        report = migrate_jobs(stock, None, classes=classes, codec=JobCodec(**codec))
    else:
        with opened_jobs(session.loaded, create=True, codec=codec) as store:
            report = migrate_jobs(stock, store, classes=classes)
    return _report(report, as_json, dry_run)


@click.command()
@click.option("--to", "target", metavar="URL", required=True, help="redis://... or an SQLAlchemy URL.")
@jobs_key_option
@run_times_key_option
@table_option
@dry_run_option
@json_option
@pass_session
def export(
    session: Session, target: str, jobs_key: str, run_times_key: str, table: str, dry_run: bool, as_json: bool
) -> int:
    """Copy all jobs back into a stock store, in its own format. Also copies quarantined jobs.

    \b
    Examples:
      wheel-sched aps export --to redis://localhost:6379/0 --dry-run

    Stop the schedulers first. A job whose id the stock store already has is not copied.
    """
    stock = open_stock(target, jobs_key=jobs_key, run_times_key=run_times_key, table=table)
    with opened_jobs(session.loaded) as store:
        report = export_jobs(store, stock, dry_run=dry_run)
    return _report(report, as_json, dry_run)


def _report(report: MigrationReport, as_json: bool, dry_run: bool) -> int:
    if as_json:
        emit({"dry_run": dry_run, **asdict(report)})
    else:
        for job_id, reason in report.failed.items():
            note(f"{job_id}: {reason}")
        if report.existing:
            note(f"{amount(len(report.existing), 'job')} not copied: the id exists there")
        verb = "would be copied" if dry_run else "copied and verified"
        note(f"{amount(report.copied, 'job')} of {report.found:,} {verb}")
    return FAILED if report.failed else OK

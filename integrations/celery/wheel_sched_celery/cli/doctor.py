"""`celery wheel doctor`: the server's checks of `wheel-sched doctor`, then those of the app."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import click

from wheel_sched.cli.doctor import say_finding, say_report
from wheel_sched.cli.options import json_option
from wheel_sched.config import Settings
from wheel_sched.errors import StoreUnavailable
from wheel_sched.management.doctor.examination import server_findings
from wheel_sched.management.doctor.finding import DoctorReport, Finding, problem
from wheel_sched.redacting import redacted
from wheel_sched_celery.cli.choosing import held_tasks
from wheel_sched_celery.management import HeldTasks, examine


@click.command()
@click.option("--timeout", "timeout_s", type=float, default=1.0, help="Seconds workers have to answer (default: 1).")
@json_option
@click.pass_context
def doctor(ctx: click.Context, timeout_s: float, as_json: bool) -> int:
    """Check everything that a guarantee depends on: server, store, workers, visibility timeout, producers.

    \b
    Examples:
      celery -A proj wheel doctor
      celery -A proj wheel doctor --json | jq '.findings[] | select(.level != "ok")'
    """
    tasks = held_tasks(ctx)
    report = DoctorReport()
    try:
        for finding in chain(_server(tasks), examine(tasks.wheel.app, timeout_s)):
            report.add(finding)
            if not as_json:
                say_finding(finding)
    except StoreUnavailable as error:
        report.away = True
        away = report.add(problem("server", str(error.__cause__ or error), "start it, or correct wheel_url"))
        if not as_json:
            say_finding(away)
    return say_report(report, as_json)


def _server(tasks: HeldTasks) -> Iterator[Finding]:
    """Run the checks of the server, if the app names its store by an address."""
    settings = tasks.wheel.settings
    if isinstance(settings.url, str):
        yield Finding("store", "ok", f"{redacted(settings.url)}, namespace {settings.namespace}")
        asked = Settings(
            settings.url, settings.namespace, settings.shards, settings.durability, replicas=settings.replicas
        )
        yield from server_findings(asked)

"""`celery wheel doctor`: the server's checks of `wheel-sched doctor`, then those of the app."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain

import click

from wheel_sched.cli.doctor import say_finding, server_findings
from wheel_sched.cli.doctor_finding import Finding, problem
from wheel_sched.cli.failing import FAILED, OK, UNAVAILABLE
from wheel_sched.cli.options import json_option
from wheel_sched.cli.output import amount, emit, say
from wheel_sched.config import Settings
from wheel_sched.errors import StoreUnavailable
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
    findings: list[Finding] = []
    away = False
    try:
        for finding in chain(_server(tasks), examine(tasks.wheel.app, timeout_s)):
            findings.append(finding)
            if not as_json:
                say_finding(finding)
    except StoreUnavailable as error:
        away = True
        findings.append(problem("server", str(error.__cause__ or error), "start it, or correct wheel_url"))
        if not as_json:
            say_finding(findings[-1])
    levels = [finding.level for finding in findings]
    if as_json:
        emit({"healthy": "problem" not in levels, "findings": [asdict(finding) for finding in findings]})
    else:
        say()
        problems, warnings = levels.count("problem"), levels.count("warn")
        say(f"{amount(problems, 'problem')}, {amount(warnings, 'warning')}, {levels.count('ok')} checks fine")
    return UNAVAILABLE if away else FAILED if "problem" in levels else OK


def _server(tasks: HeldTasks) -> Iterator[Finding]:
    """Run the checks of the server, if the app names its store by an address."""
    settings = tasks.wheel.settings
    if isinstance(settings.url, str):
        yield Finding("store", "ok", f"{redacted(settings.url)}, namespace {settings.namespace}")
        asked = Settings(
            settings.url, settings.namespace, settings.shards, settings.durability, replicas=settings.replicas
        )
        yield from server_findings(asked)

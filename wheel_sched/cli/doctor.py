"""`wheel-sched doctor`: shows what the checks of `management.doctor` find."""

from __future__ import annotations

import click

from wheel_sched.cli.failing import FAILED, OK, UNAVAILABLE
from wheel_sched.cli.options import Session, json_option, pass_session
from wheel_sched.cli.output import emit, paint, say
from wheel_sched.management.doctor.examination import examine
from wheel_sched.management.doctor.finding import DoctorReport, Finding
from wheel_sched.management.wording import amount

_MARKS = {"ok": ("ok", "green"), "warn": ("warn", "yellow"), "problem": ("PROBLEM", "red")}


@click.command()
@json_option
@pass_session
def doctor(session: Session, as_json: bool) -> int:
    """Check the settings of this machine and of the store's server that a guarantee depends on, and the namespace.

    Exit code 1: a check has found a problem. Exit code 69: the server cannot be reached. The checks load the scripts
    into the server, and write only into a scratch namespace.

    \b
    Examples:
      wheel-sched doctor
      wheel-sched --store redis://prod:6379 --durability fsync doctor --json
    """
    report = DoctorReport()
    for finding in examine(session.loaded, report):
        if not as_json:
            say_finding(finding)
    return say_report(report, as_json)


def say_finding(finding: Finding) -> None:
    """Write a finding for people."""
    words, style = _MARKS[finding.level]
    say(f"{paint(words.ljust(8), style)} {finding.check.ljust(12)} {finding.evidence}")
    if finding.fix:
        say(f"{' ' * 22}{paint('fix:', 'bold')} {finding.fix}")


def say_report(report: DoctorReport, as_json: bool) -> int:
    """Write the report as JSON, or, for people, the number of findings of each level. Returns the exit code."""
    if as_json:
        emit(report.as_dict())
    else:
        say()
        sums = amount(report.count("problem"), "problem"), amount(report.count("warn"), "warning")
        say(f"{', '.join(sums)}, {report.count('ok')} checks fine")
    return UNAVAILABLE if report.away else OK if report.healthy else FAILED

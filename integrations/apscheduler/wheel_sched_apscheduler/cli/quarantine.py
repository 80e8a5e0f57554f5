"""`wheel-sched aps quarantine list | retry | repoint`: jobs that could not be loaded."""

from __future__ import annotations

import click

from wheel_sched.cli.options import Session, dry_run_option, json_option, pass_session, yes_option
from wheel_sched.cli.output import amount, emit, instant, note, one_line, table
from wheel_sched_apscheduler.cli.changes import agree
from wheel_sched_apscheduler.cli.opening import opened_jobs
from wheel_sched_apscheduler.cli.queries import as_dict
from wheel_sched_apscheduler.instants import to_ms


@click.group()
def quarantine() -> None:
    """Jobs that could not be loaded are kept here, with the reason.

    \b
    Examples:
      wheel-sched aps quarantine list
      wheel-sched aps quarantine repoint app.old:send app.mail:send --dry-run
      wheel-sched aps quarantine retry nightly-report
    """


@quarantine.command("list")
@json_option
@pass_session
def list_(session: Session, as_json: bool) -> None:
    """What could not be loaded, and why.

    \b
    Examples:
      wheel-sched aps quarantine list
    """
    with opened_jobs(session) as store:
        entries = list(store.quarantined())
    if as_json:
        for entry in entries:
            emit(as_dict(entry))
        return
    rows = [
        (
            entry.id,
            entry.func,
            "-" if entry.next_run_time is None else instant(to_ms(entry.next_run_time)),
            one_line(entry.reason, 120),
        )
        for entry in entries
    ]
    if rows:
        table(("id", "function", "was due", "reason"), rows)
        note("mend the code, then `wheel-sched aps quarantine retry JOB...`, or `... repoint OLD NEW`")
    else:
        note("nothing is quarantined")


@quarantine.command()
@click.argument("job_ids", metavar="[JOB]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All that are quarantined.")
@yes_option
@json_option
@pass_session
def retry(session: Session, job_ids: tuple[str, ...], everything: bool, yes: bool, as_json: bool) -> None:
    """Let quarantined jobs wait again; those that still cannot be loaded come back.

    \b
    Examples:
      wheel-sched aps quarantine retry nightly-report
      wheel-sched aps quarantine retry --all --yes
    """
    if everything == bool(job_ids):
        raise click.UsageError("Which? Give ids or --all.")
    with opened_jobs(session) as store:
        chosen = [entry.id for entry in store.quarantined()] if everything else list(job_ids)
        agree("Try {} again?", len(chosen), yes)
        released = store.retry(chosen)
    if as_json:
        emit({"asked": chosen, "released": released})
    else:
        note(f"{amount(len(released), 'job')} of {len(chosen)} will be tried again")


@quarantine.command()
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@dry_run_option
@yes_option
@json_option
@pass_session
def repoint(session: Session, old: str, new: str, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Give every job of the function OLD the function NEW (module:name), quarantined or not.

    \b
    Examples:
      wheel-sched aps quarantine repoint app.old:send app.mail:send --dry-run
    """
    with opened_jobs(session) as store:
        changed = store.repoint(old, new, dry_run=True)
        if not dry_run:
            agree("Give {} the new function?", len(changed), yes)
            changed = store.repoint(old, new)
    if as_json:
        emit({"old": old, "new": new, "dry_run": dry_run, "jobs": changed})
    else:
        note(f"{amount(len(changed), 'job')} {'would now name' if dry_run else 'now name'} {new}")

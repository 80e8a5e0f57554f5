"""`wheel-sched aps run-now | pause | resume | delete | release | repoint`: change jobs."""

from __future__ import annotations

from collections.abc import Sequence

import click

from wheel_sched.cli.failing import FAILED, OK
from wheel_sched.cli.options import Session, confirm, dry_run_option, json_option, pass_session, yes_option
from wheel_sched.cli.output import emit, note
from wheel_sched.management.wording import amount
from wheel_sched_apscheduler.management import changing
from wheel_sched_apscheduler.management.opening import opened_jobs

ids_argument = click.argument("job_ids", metavar="JOB...", nargs=-1, required=True)


@click.command("run-now")
@ids_argument
@yes_option
@json_option
@pass_session
def run_now(session: Session, job_ids: tuple[str, ...], yes: bool, as_json: bool) -> int:
    """Make jobs due at once, paused ones too. A recurring job then runs again at the times of its trigger.

    \b
    Examples:
      wheel-sched aps run-now nightly-report
    """
    confirm_several("Run {} now?", len(job_ids), yes)
    return _each(session, job_ids, changing.run_now, as_json)


@click.command()
@ids_argument
@yes_option
@json_option
@pass_session
def pause(session: Session, job_ids: tuple[str, ...], yes: bool, as_json: bool) -> int:
    """Take jobs out of the schedule and keep them. A run under way finishes.

    \b
    Examples:
      wheel-sched aps pause nightly-report
    """
    confirm_several("Pause {}?", len(job_ids), yes)
    return _each(session, job_ids, changing.pause, as_json)


@click.command()
@ids_argument
@yes_option
@json_option
@pass_session
def resume(session: Session, job_ids: tuple[str, ...], yes: bool, as_json: bool) -> int:
    """Schedule paused jobs from now on. A job whose trigger has no more run times is deleted.

    \b
    Examples:
      wheel-sched aps resume nightly-report
    """
    confirm_several("Resume {}?", len(job_ids), yes)
    return _each(session, job_ids, changing.resume, as_json)


@click.command()
@ids_argument
@yes_option
@json_option
@pass_session
def delete(session: Session, job_ids: tuple[str, ...], yes: bool, as_json: bool) -> int:
    """Delete jobs for good. A run under way finishes.

    \b
    Examples:
      wheel-sched aps delete old-report --yes
    """
    confirm(f"Delete {amount(len(job_ids), 'job')} for good?", yes)
    return _each(session, job_ids, changing.delete, as_json)


@click.command()
@click.argument("job_ids", metavar="[JOB]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All quarantined jobs.")
@yes_option
@json_option
@pass_session
def release(session: Session, job_ids: tuple[str, ...], everything: bool, yes: bool, as_json: bool) -> None:
    """Schedule quarantined jobs again. A job that still cannot run is quarantined again.

    \b
    Examples:
      wheel-sched aps release nightly-report
      wheel-sched aps release --all --yes
    """
    if everything == bool(job_ids):
        raise click.UsageError("Which? Give ids or --all.")
    with opened_jobs(session.loaded) as store:
        chosen = changing.quarantined_ids(store) if everything else list(job_ids)
        confirm_several("Release {}?", len(chosen), yes)
        released = store.release_quarantined(chosen)
    if as_json:
        emit({"asked": chosen, "released": released})
    else:
        note(f"{amount(len(released), 'job')} of {len(chosen)} released")


@click.command()
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@dry_run_option
@yes_option
@json_option
@pass_session
def repoint(session: Session, old: str, new: str, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Replace the function OLD by NEW (module:name) in every job. Release the changed jobs from quarantine.

    \b
    Examples:
      wheel-sched aps repoint app.old:send app.mail:send --dry-run
    """
    with opened_jobs(session.loaded) as store:
        changed = store.repoint(old, new, dry_run=True)
        if not dry_run:
            confirm_several("Give {} the new function?", len(changed), yes)
            changed = store.repoint(old, new)
    if as_json:
        emit({"old": old, "new": new, "dry_run": dry_run, "jobs": changed})
    else:
        note(f"{amount(len(changed), 'job')} {'would now name' if dry_run else 'now name'} {new}")


def confirm_several(question: str, count: int, yes: bool) -> None:
    """Ask before more than one job is changed. The number of jobs replaces `{}` in the question.

    Raises:
        UsageError: `yes` is false, and there is no terminal on which to ask.
        NotDone: the user answered no.
    """
    if count > 1:
        confirm(question.format(amount(count, "job")), yes)


def _each(
    session: Session,
    job_ids: Sequence[str],
    change: changing.Change,
    as_json: bool,
) -> int:
    code = OK
    with opened_jobs(session.loaded) as store:
        for result in changing.change_named(store, job_ids, change):
            if as_json:
                emit(result.as_dict())
            else:
                note(f"{result.id}: {result.done}")
            code = code if result.changed else FAILED
    return code

"""`wheel-sched aps run-now | pause | resume | delete | release | repoint`: change jobs."""

from __future__ import annotations

import shlex
from collections.abc import Callable

import click
from apscheduler.jobstores.base import JobLookupError

from wheel_sched.cli.failing import FAILED, OK
from wheel_sched.cli.options import Session, confirm, dry_run_option, json_option, pass_session, yes_option
from wheel_sched.cli.output import emit, note
from wheel_sched.management.wording import amount, instant
from wheel_sched_apscheduler.cli.opening import opened_jobs
from wheel_sched_apscheduler.codec import NotHere, Unreadable
from wheel_sched_apscheduler.run_times import to_ms
from wheel_sched_apscheduler.stores.redis import RedisWheelJobStore

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

    def change(store: RedisWheelJobStore, job_id: str) -> str:
        store.run_now(job_id)
        return "due now"

    return _each(session, job_ids, change, as_json)


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

    def change(store: RedisWheelJobStore, job_id: str) -> str:
        store.pause(job_id)
        return "paused"

    return _each(session, job_ids, change, as_json)


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

    def change(store: RedisWheelJobStore, job_id: str) -> str:
        moment = store.resume(job_id)
        return "deleted: its trigger has no more run times" if moment is None else f"next run {instant(to_ms(moment))}"

    return _each(session, job_ids, change, as_json)


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

    def change(store: RedisWheelJobStore, job_id: str) -> str:
        store.remove_job(job_id)
        return "deleted"

    return _each(session, job_ids, change, as_json)


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
    with opened_jobs(session) as store:
        chosen = [entry.id for entry in store.quarantined()] if everything else list(job_ids)
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
    with opened_jobs(session) as store:
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
    session: Session, job_ids: tuple[str, ...], change: Callable[[RedisWheelJobStore, str], str], as_json: bool
) -> int:
    code = OK
    with opened_jobs(session) as store:
        for job_id in job_ids:
            try:
                done, found = change(store, job_id), True
            except JobLookupError:
                done, found, code = "there is no such job", False, FAILED
            except NotHere as error:
                done, found, code = f"{error}; nothing was changed", True, FAILED
            except Unreadable as error:
                hint = f"`wheel-sched aps delete {shlex.quote(job_id)}` deletes it for good"
                done, found, code = f"its record is damaged: {error}; nothing was changed; {hint}", True, FAILED
            if as_json:
                emit({"id": job_id, "found": found, "done": done})
            else:
                note(f"{job_id}: {done}")
    return code

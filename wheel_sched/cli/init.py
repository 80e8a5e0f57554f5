"""`wheel-sched init`: write a small working project."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from wheel_sched.cli.options import json_option
from wheel_sched.cli.output import emit, note, say
from wheel_sched.extensions import installed
from wheel_sched.management.new_project import files_of, write_project


@click.command()
@click.argument("folder", default=".", type=click.Path(path_type=Path))
@click.option("--stack", metavar="STACK", help="redis, kafka, celery or apscheduler.")
@json_option
def init(folder: Path, stack: str | None, as_json: bool) -> None:
    """Write a small working project into FOLDER (default: here).

    It has a consumer, tasks or jobs, a retry policy, a test, a compose file with the servers, and a README. A file that
    exists is never replaced: then nothing is written.

    \b
    Examples:
      wheel-sched init shop --stack redis
      wheel-sched init --stack celery --json | jq -r .next
    """
    stacks = installed().stacks
    chosen = stacks.get(stack) if stack is not None else None
    if chosen is None:
        choices = ", ".join(f"{name} ({one.about})" for name, one in stacks.items()) or "none is installed"
        got = "none" if stack is None else repr(stack[:80])
        raise click.UsageError(f"expected --stack to be one of: {choices}; got: {got}. Nothing was written.")
    written = write_project(folder, files_of(chosen))
    follow = chosen.next if folder == Path() else f"cd {shlex.quote(str(folder))} && {chosen.next}"
    if as_json:
        emit({"stack": stack, "folder": str(folder), "files": [path.name for path in written], "next": follow})
        return
    for path in written:
        say(str(path))
    note(f"wrote {len(written)} files; next: {follow}")

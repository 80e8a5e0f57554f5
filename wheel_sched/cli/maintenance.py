"""`wheel-sched backup | restore | reshard`: maintenance of a namespace."""

from __future__ import annotations

from dataclasses import asdict, replace

import click

from wheel_sched.cli.options import (
    Session,
    confirm,
    force_option,
    json_option,
    may_replace,
    pass_session,
    yes_option,
)
from wheel_sched.cli.output import Progress, emit, note, say
from wheel_sched.errors import NotDone
from wheel_sched.management.opening import created_as, opened, server_url
from wheel_sched.management.wording import amount, instant
from wheel_sched.redacting import redacted


@click.command()
@click.argument("file", type=click.Path(dir_okay=False))
@force_option
@json_option
@pass_session
def backup(session: Session, file: str, force: bool, as_json: bool) -> None:
    """Write the items, attempt counts, documents and pauses of a namespace to FILE as JSON Lines, with a checksum.

    Items in flight are written as due. The file appears when it is complete, and only its owner can read it. An empty
    backup never replaces a backup with items. For an exact copy, stop the services first: an item whose state changes
    during the backup is written in its earlier state.

    \b
    Examples:
      wheel-sched backup orders.jsonl
      wheel-sched --namespace orders backup orders-$(date +%F).jsonl --json
    """
    from wheel_sched.store.maintenance.backup import write_backup

    there = may_replace(file, force)
    with opened(session.settings) as store, Progress("items written") as progress:
        written = write_backup(store, file, namespace=session.settings.namespace, replace=there, progress=progress)
    if as_json:
        emit({"file": file, **asdict(written)})
    else:
        states = ", ".join(f"{count:,} {state}" for state, count in sorted(written.by_state.items()))
        others = f"{amount(written.attempt_counts, 'attempt count')} and {amount(written.documents, 'document')}"
        say(f"{amount(written.items, 'item')}, {others} in {file}" + (f" ({states})" * bool(states)))
    if not written.exact:
        note("items that changed during the backup have their earlier state; for an exact copy, stop the services")


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--resume", is_flag=True, help="Continue an interrupted restore.")
@json_option
@pass_session
def restore(session: Session, file: str, resume: bool, as_json: bool) -> None:
    """Load a backup into an empty namespace.

    An absent namespace is created, with the shard count of the backup unless --shards gives another. The whole file is
    checked before anything is written.

    \b
    Examples:
      wheel-sched restore orders.jsonl
      wheel-sched --namespace orders2 --shards 4 restore orders.jsonl
    """
    from wheel_sched.store.maintenance.restoring import restore_backup, verify_backup

    described = verify_backup(file)
    settings = session.settings
    with server_url(settings, create=True) as url:
        if settings.shards is None and not created_as(url, settings.namespace):
            settings = replace(settings, shards=described.shards)
        with opened(replace(settings, store=url), create=True) as store, Progress("items read") as progress:
            put = restore_backup(store, file, resume=resume, progress=progress)
            shards = store.shards
    if as_json:
        emit({"file": file, "namespace": settings.namespace, "shards": shards, "items": described.items, "put": put})
    else:
        already = described.items - put
        there = f", {already:,} were there" if already else ""
        say(f"{put:,} items put into {settings.namespace} ({amount(shards, 'shard')}){there}")
        say(f"the backup was taken {instant(described.taken_ms)} from {described.namespace}")


@click.command()
@click.argument("shards", type=click.IntRange(1, 1024), required=False)
@click.option("--resume", is_flag=True, help="Continue an interrupted reshard.")
@yes_option
@json_option
@pass_session
def reshard(session: Session, shards: int | None, resume: bool, yes: bool, as_json: bool) -> None:
    """Change the shard count of the namespace to SHARDS, offline.

    Stop every process that uses the namespace first. The namespace is frozen during the reshard. After it, the store
    refuses the writes of a process that still runs, until that process is restarted. The command does nothing while
    items are in flight, an ordering key is closed, or a dispatcher runs. An interrupted reshard loses nothing: the
    namespace stays frozen until `--resume` has finished it.

    \b
    Examples:
      wheel-sched reshard 4
      wheel-sched reshard --resume --yes
    """
    if shards is None and not resume:
        raise click.UsageError("Give the number of shards, or --resume.")
    from wheel_sched.store.maintenance.reshard import reshard as run
    from wheel_sched.store.redis.backend import RedisBackend, client_for
    from wheel_sched.store.redis.round_trips import Dialect

    settings = session.settings
    with server_url(settings) as url:
        found = created_as(url, settings.namespace)
        if not found:
            raise NotDone(
                f"there is no namespace {settings.namespace!r} in {redacted(settings.store)}: nothing was changed"
            )
        if found.get("shards") != str(shards) or resume:
            confirm(
                f"Reshard {settings.namespace} from {found.get('shards')} to {shards or 'the planned number of'} "
                "shards? The namespace is frozen until the end.",
                yes,
            )
        dialect = Dialect(settings.namespace, settings.durability, settings.replicas)
        backend = RedisBackend(client_for(url), dialect, owns_client=True)
        try:
            with Progress("items moved") as progress:
                done = run(backend, shards, resume=resume, progress=lambda _, moved: progress(moved))
        finally:
            backend.close()
    if as_json:
        emit(asdict(done))
    elif done.before == done.after:
        say(f"{settings.namespace} has {amount(done.after, 'shard')} already; nothing was changed")
    else:
        say(f"{settings.namespace}: {done.before} to {done.after} shards; {done.moved:,} items moved")
        note("start the services again; processes that still run must be restarted")

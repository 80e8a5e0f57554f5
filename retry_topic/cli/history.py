"""`wheel-sched history`: exports the attempt history from the store."""

from __future__ import annotations

from dataclasses import asdict

import click

from retry_topic.cli.settings import settings_of
from wheel_sched.cli.options import Session, force_option, json_option, may_replace, pass_session
from wheel_sched.cli.output import emit, note, say
from wheel_sched.management.opening import opened
from wheel_sched.management.wording import amount, instant


@click.group(name="history", help="Export the result of each attempt of messages that failed.")
def history() -> None: ...


@history.command()
@click.argument("file", type=click.Path(dir_okay=False))
@force_option
@json_option
@pass_session
def export(session: Session, file: str, force: bool, as_json: bool) -> None:
    """Write the attempt history to FILE (.parquet or .jsonl), for `wheel-sched spark backtest` and `slo`.

    The file appears when it is complete, and only its owner can read it. The store keeps a history when services and
    consumers run with one (`wheel-sched serve --history 100000`, ConsumerConfig.history). The store is not changed.

    \b
    Examples:
      wheel-sched history export attempts.parquet
      wheel-sched --namespace orders history export attempts.jsonl --json
    """
    from retry_topic.history import export as run

    there = may_replace(file, force)
    with opened(settings_of(session)) as store:
        done = run(store, file, replace=there)
    if as_json:
        emit({"file": file, **asdict(done)})
        return
    say(f"{amount(done.rows, 'attempt')} in {file}")
    if done.first_ms is not None and done.last_ms is not None:
        say(f"from {instant(done.first_ms)[:19]} to {instant(done.last_ms)[:19]}")
    else:
        note("there is no history: run services and consumers with one, see docs/spark-history.md")
    if done.unreadable:
        note(f"{amount(done.unreadable, 'row')} could not be read and is missing from the file")

"""`wheel-sched demo`: the command that starts the demo."""

from __future__ import annotations

from pathlib import Path

import click

from wheel_sched.cli.options import json_option


@click.command()
@click.option(
    "--input",
    "input_path",
    type=click.Path(exists=True, dir_okay=False),
    help="Your own records (JSON Lines).",
)
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="Number of records.")
@click.option("--folder", type=click.Path(file_okay=False), metavar="FOLDER", help="Of the server's data.")
@json_option
def demo(input_path: str | None, count: int | None, folder: str | None, as_json: bool) -> int:
    """See it work: an embedded server, messages that fail, retries on the millisecond, a killed service.

    The last number, "duplicated" with --json, counts records that the endpoint accepted twice: its first answer came
    too late for the consumer, which tried again.

    \b
    Examples:
      wheel-sched demo
      wheel-sched demo --input events.jsonl --json
    """
    from retry_topic.demo.command import demo as run
    from retry_topic.demo.run import FOLDER

    return run(input_path=input_path, count=count, as_json=as_json, folder=Path(folder) if folder else FOLDER)

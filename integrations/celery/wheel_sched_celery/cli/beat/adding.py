"""`celery wheel beat add`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from wheel_sched.cli.failing import OK
from wheel_sched.cli.options import json_option
from wheel_sched.cli.output import emit, say
from wheel_sched.errors import NotDone
from wheel_sched.management.wording import when
from wheel_sched_celery.beat.shown_entry import as_dict
from wheel_sched_celery.cli.beat.choosing import beat_entries
from wheel_sched_celery.settings import CATCH_UP, MOST_LATE

_OPTIONS = ("queue", "exchange", "routing_key", "priority", "expires")


if TYPE_CHECKING:
    _Json = click.ParamType[Any]
else:
    _Json = click.ParamType  # the class of click 8.1 takes no type argument


class JsonType(_Json):
    """A value in JSON of a given type."""

    name = "json"

    def __init__(self, kind: type, words: str) -> None:
        self._kind, self._words = kind, words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, self._kind):
            return value
        try:
            found = json.loads(value)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, self._kind):
            self.fail(f"expected {self._words}, got: {value!r}", param, ctx)
        return found


@click.command()
@click.argument("name", metavar="NAME")
@click.argument("task", metavar="TASK")
@click.argument("schedule", metavar="SCHEDULE")
@click.option("--args", "args", type=JsonType(list, "a JSON list such as '[1]'"), default="[]", help="As a JSON list.")
@click.option(
    "--kwargs",
    "kwargs",
    type=JsonType(dict, "a JSON object such as '{\"a\": 1}'"),
    default="{}",
    help="As JSON object.",
)
@click.option("--queue", "-Q", help="The queue of its tasks.")
@click.option("--exchange", help="The exchange of its tasks.")
@click.option("--routing-key", help="The routing key of its tasks.")
@click.option("--priority", type=click.IntRange(0, 255), help="The priority of its tasks.")
@click.option(
    "--expires",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Its tasks expire this long after they are sent.",
)
@click.option(
    "--options",
    "more",
    type=JsonType(dict, "a JSON object such as '{\"headers\": {}}'"),
    default="{}",
    help="Further options of apply_async, as JSON object.",
)
@click.option("--tz", metavar="ZONE", help="Time zone of a line of cron (default: that of the app).")
@click.option("--catch-up", type=click.Choice(CATCH_UP), help="What becomes of missed runs (default: as the app says).")
@click.option(
    "--catch-up-limit", type=click.IntRange(1, MOST_LATE), metavar="N", help="How many missed runs `all` sends at most."
)
@click.option("--replace", is_flag=True, help="Give an entry of this name this definition.")
@json_option
@click.pass_context
def add(
    ctx: click.Context,
    /,
    name: str,
    task: str,
    schedule: str,
    args: list[Any],
    kwargs: dict[str, Any],
    more: dict[str, Any],
    tz: str | None,
    catch_up: str | None,
    catch_up_limit: int | None,
    replace: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Add an entry: TASK is sent whenever SCHEDULE is due.

    SCHEDULE is a line of cron ('0 4 * * *'), a duration (30s, 1h30m), or 'solar EVENT LATITUDE LONGITUDE'.

    \b
    Examples:
      celery -A proj wheel beat add ping proj.ping 30s
      celery -A proj wheel beat add report proj.report '0 4 * * mon-fri' --tz Europe/Berlin --kwargs '{"region": "eu"}'
      celery -A proj wheel beat add report proj.report 1h --replace
    """
    entries = beat_entries(ctx)
    options = {**more, **{option: given[option] for option in _OPTIONS if given[option] is not None}}
    entry = entries.make(
        name, task, schedule, args, kwargs, options, tz=tz, catch_up=catch_up, catch_up_limit=catch_up_limit
    )
    exists = replace and entries.get(name) is not None
    try:
        stored = entries.replace(entry) if exists else entries.add(entry)
    except NotDone as error:
        raise NotDone(str(error).replace("use `replace`", "--replace gives it this definition")) from error
    if as_json:
        emit(as_dict(stored))
        return OK
    due_ms = None if stored.entry is None else stored.entry.due_ms
    next_words = "it is paused" if due_ms is None else f"next {when(due_ms, entries.store.now_ms())}"
    say(f"{name} {'replaced' if exists else 'added'}, {next_words}")
    return OK

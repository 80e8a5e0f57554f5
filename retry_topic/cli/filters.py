"""The options of the commands list, run-now, reschedule, delete and replay that choose messages.

    --topic T  --state due|leased|held|dead  --error GLOB  --fingerprint HEX  --since I  --until I  --key K  --limit N

`--dead` is short for `--state dead`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar

import click

from retry_topic.management.filters import Filter, checked_fingerprint
from wheel_sched.cli.instants import INSTANT
from wheel_sched.errors import ConfigError
from wheel_sched.store.core.items import STATES

F = TypeVar("F", bound=Callable[..., Any])


def _fingerprint(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    try:
        return None if value is None else checked_fingerprint(value)
    except ConfigError as error:
        raise click.BadParameter(str(error)) from error


_OPTIONS = (
    click.option("--topic", metavar="TOPIC", help="Only messages that first failed in TOPIC, or wait for it."),
    click.option(
        "--state", "states", type=click.Choice(STATES), multiple=True, help="Only messages in this state; repeatable."
    ),
    click.option("--dead", is_flag=True, help="Only dead letters; the same as --state dead."),
    click.option("--error", metavar="GLOB", help="Only if the error's class, message or reason matches GLOB."),
    click.option(
        "--fingerprint",
        metavar="HEX",
        callback=_fingerprint,
        help="Only errors with this fingerprint; its beginning is enough.",
    ),
    click.option(
        "--since",
        "since_ms",
        type=INSTANT,
        metavar="INSTANT",
        help="Only messages that are due (or died) at INSTANT or later.",
    ),
    click.option(
        "--until",
        "until_ms",
        type=INSTANT,
        metavar="INSTANT",
        help="Only messages that are due (or died) before INSTANT.",
    ),
    click.option("--key", metavar="KEY", help="Only messages with this key."),
    click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most N messages."),
)
_NAMES = ("topic", "states", "error", "fingerprint", "since_ms", "until_ms", "key", "limit")


def filter_options(command: F) -> F:
    """Add the options of the filter. The command receives them as one argument `chosen: Filter`."""

    @wraps(command)
    def bundled(*args: Any, **kwargs: Any) -> Any:
        chosen = Filter(**{name: kwargs.pop(name) for name in _NAMES})
        if kwargs.pop("dead"):
            if not chosen.only_dead:
                raise click.UsageError("--dead is --state dead: remove the other --state, or give both as --state.")
            chosen = replace(chosen, states=("dead",))
        return command(*args, chosen=chosen, **kwargs)

    wrapped: Any = bundled
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    result: F = wrapped
    return result


def selecting_options(command: F) -> F:
    """Add to a command the argument for ids, the options of the filter, and --all."""
    command = click.option(
        "--all", "everything", is_flag=True, help="Select all messages, instead of ids or a filter."
    )(command)
    command = filter_options(command)
    return click.argument("ids", nargs=-1, metavar="[ID]...")(command)

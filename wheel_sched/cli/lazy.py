"""A group of commands that are imported when they are run: `--help` costs click and nothing else.

Each command is a "module:attribute" and a line of help. Its module may belong to another package, which so can offer
commands without being imported here.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import click

from wheel_sched.cli.extras import missing, store_named_by
from wheel_sched.cli.failing import OK, drop_output, guarded


class Lazy(NamedTuple):
    """Where a command lies, its line in the list, and the extra it needs."""

    target: str
    short_help: str
    extra: str = ""


class LazyGroup(click.Group):
    """A click group over `Lazy` commands, in the order given."""

    def __init__(self, *args: Any, lazy: Mapping[str, Lazy], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = lazy

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        try:
            return super().make_context(*args, **kwargs)
        except BrokenPipeError:  # of --help, which is written here; click would call it a failure
            drop_output()
            raise click.exceptions.Exit(OK) from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        lazy = self._lazy.get(cmd_name)
        if lazy is None:
            return None
        module, _, attribute = lazy.target.partition(":")
        try:
            command: click.Command = getattr(import_module(module), attribute)
        except ImportError as error:
            told = missing(cmd_name, error, store=store_named_by(ctx.find_root().params), extra=lazy.extra)
            if told is None:
                raise
            raise told from error
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.short_help) for name, lazy in self._lazy.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self._lazy and not args[0].startswith("-"):
            from difflib import get_close_matches

            close = get_close_matches(args[0], self._lazy, 1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise click.UsageError(f"There is no command {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)


class RootGroup(LazyGroup):
    """The outermost group: exit codes and errors in plain words, see `failing`."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # the reader of a pipe has seen enough; click would call that a failure
            drop_output()
            return OK
        except ImportError as error:  # of what a command imports when it runs
            told = missing(ctx.invoked_subcommand or "this", error, store=store_named_by(ctx.params))
            if told is None:
                raise
            raise told from error

    def main(self, *args: Any, **kwargs: Any) -> Any:
        kwargs["standalone_mode"] = False
        guarded(lambda: super(RootGroup, self).main(*args, **kwargs))

"""Groups of commands that are imported when they are called: `--help` imports none of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
from click.shell_completion import CompletionItem

from wheel_sched.cli.failing import OK, drop_output
from wheel_sched.extensions import Lazy, resolve
from wheel_sched.management.missing import missing_package, store_named_by


class LazyGroup(click.Group):
    """A click group of `Lazy` commands, listed in the given order."""

    def __init__(self, *args: Any, lazy: Mapping[str, Lazy], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = lazy

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        try:
            return super().make_context(*args, **kwargs)
        except BrokenPipeError:  # --help has written the help text and exits; click would report a failure
            drop_output()
            raise click.exceptions.Exit(OK) from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        lazy = self._lazy.get(cmd_name)
        if lazy is None:
            return None
        try:
            command: click.Command = resolve(lazy.target)
        except ImportError as error:
            words = missing_package(cmd_name, error, store=store_named_by(ctx.find_root().params), extra=lazy.extra)
            if words is None:
                raise
            raise words from error
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete names of commands and options. Imports no command, so it works when packages are missing."""
        names = [name for name in self._lazy if name.startswith(incomplete)]
        found = [CompletionItem(name, help=self._lazy[name].short_help) for name in names]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_section(formatter, "Commands", self._lazy)

    def format_section(self, formatter: click.HelpFormatter, title: str, commands: Mapping[str, Lazy]) -> None:
        """Write a list of commands below a title into the help text."""
        with formatter.section(title):
            formatter.write_dl([(name, lazy.short_help) for name, lazy in commands.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self._lazy and not args[0].startswith("-"):
            from difflib import get_close_matches

            close = get_close_matches(args[0], self._lazy, 1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise click.UsageError(f"There is no command {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

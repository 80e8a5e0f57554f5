"""Options that several commands share, and the session that commands find in click's context."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import click

from wheel_sched.cli.extensions import installed
from wheel_sched.cli.failing import CommandFailed
from wheel_sched.config import Loaded, Settings, load_settings
from wheel_sched.escaping import escaped

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(slots=True)
class Session:
    """The values of the global options. The settings are loaded when a command first asks for them.

    Args:
        flags: values by setting; None is not given.
        file: the settings file that --config names. Defaults to None.
    """

    flags: Mapping[str, Any]
    file: str | None = None
    _loaded: Loaded | None = field(default=None, repr=False)

    @property
    def loaded(self) -> Loaded:
        if self._loaded is None:
            found = installed()
            self._loaded = load_settings(
                self.flags,
                file=self.file,
                kinds=found.settings,
                other_variables=found.variables,
                refuse_unknown=not found.problems,  # an unknown name may belong to what could not be loaded
            )
        return self._loaded

    @property
    def settings(self) -> Settings:
        """The settings of the core; `loaded.read` gives those of an extension."""
        return self.loaded.settings


pass_session = click.make_pass_decorator(Session)

json_option = click.option("--json", "as_json", is_flag=True, help="Write JSON to stdout, lists one object a line.")
yes_option = click.option("--yes", "-y", is_flag=True, help="Don't ask. Required where nobody can answer.")
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Change nothing; show how many would be changed, and five."
)


def confirm(question: str, yes: bool) -> None:
    """Ask on a terminal. Without a terminal nobody can answer, and --yes is required.

    Raises:
        UsageError: nobody can answer.
        CommandFailed: the answer was no.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Nothing was changed: nobody can answer here; add --yes (or --dry-run).")
    if not click.confirm(escaped(question), err=True):
        raise CommandFailed("nothing was changed")

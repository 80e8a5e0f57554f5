"""Options that several commands have, and the session they find in the context."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import click

from wheel_sched.cli.failing import CommandFailed
from wheel_sched.config import Loaded, Settings, load_settings
from wheel_sched.escaping import escaped

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(slots=True)
class Session:
    """What the global options said; settings are read when a command first asks for them."""

    flags: Mapping[str, Any]
    file: str | None = None
    _loaded: Loaded | None = field(default=None, repr=False)

    @property
    def loaded(self) -> Loaded:
        if self._loaded is None:
            self._loaded = load_settings(self.flags, file=self.file)
        return self._loaded

    @property
    def settings(self) -> Settings:
        return self.loaded.settings


pass_session = click.make_pass_decorator(Session)

json_option = click.option("--json", "as_json", is_flag=True, help="JSON on stdout; listings one object a line.")
yes_option = click.option("--yes", "-y", is_flag=True, help="Don't ask. Needed where nobody can answer.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Change nothing; say how many, and show five.")


def confirm(question: str, yes: bool) -> None:
    """Ask on a terminal; where nobody can answer, insist on --yes.

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

"""Options and questions that several commands share, and the `Session` that click passes to commands."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import click

from wheel_sched.config import Loaded, Settings, load_settings
from wheel_sched.errors import NotDone
from wheel_sched.escaping import escaped
from wheel_sched.extensions import installed

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(slots=True)
class Session:
    """The values of the global options. The settings are loaded when a command first asks for them.

    Args:
        flags: values by setting; None: the flag was not given.
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
                refuse_unknown=not found.problems,  # an unknown name may belong to an extension that cannot be loaded
            )
        return self._loaded

    @property
    def settings(self) -> Settings:
        """The settings of the core; `loaded.read` gives those of an extension."""
        return self.loaded.settings


pass_session = click.make_pass_decorator(Session)

json_option = click.option("--json", "as_json", is_flag=True, help="Write JSON to stdout, one object a line.")
yes_option = click.option("--yes", "-y", is_flag=True, help="Don't ask. Required without a terminal.")
force_option = click.option("--force", is_flag=True, help="Replace an existing FILE without a question.")
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Change nothing. Show how many items would change, and five of them."
)


def confirm(question: str, yes: bool) -> None:
    """Ask the user on a terminal, unless `yes` is true. Without a terminal --yes is required.

    Raises:
        UsageError: there is no terminal.
        NotDone: the answer was no.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(
            f"{question} Nothing was changed: there is no terminal to answer on; add --yes (or --dry-run)."
        )
    if not click.confirm(escaped(question), err=True):
        raise NotDone("nothing was changed")


def may_replace(file: str, force: bool) -> bool:
    """Whether `file` exists. If it does, the user has allowed its replacement, by an answer or by `force`.

    Raises:
        NotDone: `file` exists and may not be replaced, or it is `-`; nothing was written.
    """
    if file == "-":
        raise NotDone("expected the name of a file, got: -; nothing was written; for a file called - give ./-")
    there = Path(file).exists()
    if there and not force and not sys.stdin.isatty():
        raise NotDone(f"{file} exists: nothing was written; give another name, or --force to replace it")
    if there:
        confirm(f"{file} exists. Replace it when the new file is complete?", force)
    return there

"""The root of the command line: the global options, the core's commands, and those of the extensions.

The global options are --config, --version and the settings that have a flag. This module names no extension:
`extensions.installed` finds them.
"""

from __future__ import annotations

from typing import Any

import click

from wheel_sched.cli.failing import OK, drop_output, guarded
from wheel_sched.cli.lazy import LazyGroup
from wheel_sched.cli.options import Session
from wheel_sched.cli.output import comment_by, note
from wheel_sched.config import specs
from wheel_sched.extensions import Installed, Lazy, installed
from wheel_sched.management.missing import missing_package, store_named_by

COMMANDS = {
    "doctor": Lazy("wheel_sched.cli.doctor:doctor", "Check every setting that a guarantee depends on."),
    "stats": Lazy("wheel_sched.cli.stats:stats", "Count items that wait, are in flight, held or dead."),
    "ps": Lazy("wheel_sched.cli.ps:ps", "List live consumers, services, workers, schedulers."),
    "dashboard": Lazy("wheel_sched.cli.dashboard:dashboard", "Serve the dashboard.", "dashboard"),
    "dashboard-password": Lazy(
        "wheel_sched.cli.dashboard:dashboard_password", "Make a user of the dashboard.", "dashboard"
    ),
    "exporter": Lazy("wheel_sched.cli.exporter:exporter", "Serve the metrics of a namespace.", "metrics"),
    "backup": Lazy("wheel_sched.cli.maintenance:backup", "Write a namespace to a file."),
    "restore": Lazy("wheel_sched.cli.maintenance:restore", "Load a backup into an empty namespace."),
    "reshard": Lazy("wheel_sched.cli.maintenance:reshard", "Change the shard count of a namespace, offline."),
    "init": Lazy("wheel_sched.cli.init:init", "Write a small working project."),
    "config": Lazy("wheel_sched.cli.settings:config", "Show the settings and where they come from."),
}

_EXAMPLES = (
    ("doctor", "check server, namespace and settings"),
    ("stats", "count the items, show the next due time"),
    ("ps", "who works on this namespace now"),
    ("dashboard", "all of this as pages"),
)
_EXAMPLE_WIDTH = 52

_HELP = """Delayed, durable messages, released to the millisecond.

\b
Examples:
{examples}

Settings: flag, then WHEEL_SCHED_*, then wheel-sched.toml, then default. Exit codes: 0 done, 1 failed or problems
found, 2 wrong usage, 69 store or broker unreachable, 130 interrupted.
"""


def _help(found: Installed) -> str:
    examples = [line for one in found.extensions for line in one.examples]
    lines = [f"  wheel-sched {line}".ljust(_EXAMPLE_WIDTH) + f" {what}" for line, what in (*examples, *_EXAMPLES)]
    return _HELP.format(examples="\n".join(line.rstrip() for line in lines))


def _options(found: Installed) -> list[click.Parameter]:
    """Make a global option for each setting that has a flag."""
    options: list[click.Parameter] = []
    for name, spec in specs(found.settings).items():
        if not spec.flag_help:
            continue
        flag = f"--{name.replace('_', '-')}"
        if spec.kind == "switch":
            options.append(click.Option([f"{flag}/--no-{flag[2:]}"], default=None, help=spec.flag_help))
        else:
            kind = int if spec.kind == "number" else str
            options.append(click.Option([flag], type=kind, metavar=spec.metavar, help=spec.flag_help))
    return options


class RootGroup(LazyGroup):
    """The command `wheel-sched` itself: its subcommands and options come from the core and the extensions.

    `main` ends the process with an exit code, see `failing`.
    """

    def __init__(self, *args: Any, found: Installed | None = None, **kwargs: Any) -> None:
        self._found = installed() if found is None else found
        taken = [name for name in self._found.commands if name in COMMANDS]
        ignored = (
            f"the command {name!r} of an extension is ignored: the core has a command of this name" for name in taken
        )
        self._problems = (*self._found.problems, *ignored)
        kwargs["params"] = [*_options(self._found), *kwargs.get("params", ())]
        kwargs["help"] = _help(self._found)
        super().__init__(*args, lazy=self._found.commands | COMMANDS, **kwargs)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        for problem in self._problems:
            note(f"wheel-sched: {problem}")
        return super().make_context(*args, **kwargs)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for extension in self._found.extensions:
            if extension.commands:
                self.format_section(formatter, extension.title, extension.commands)
        self.format_section(formatter, "Store", COMMANDS)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # the reader of a pipe is gone; click would report a failure
            drop_output()
            return OK
        except ImportError as error:  # a command imports packages when it runs
            words = missing_package(ctx.invoked_subcommand or "this", error, store=store_named_by(ctx.params))
            if words is None:
                raise
            raise words from error

    def main(self, *args: Any, **kwargs: Any) -> Any:
        kwargs["standalone_mode"] = False
        guarded(lambda: super(RootGroup, self).main(*args, **kwargs))


def _version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"wheel-sched {version('wheel-sched')}")
        ctx.exit()


@click.group(cls=RootGroup, context_settings={"help_option_names": ["-h", "--help"]}, name="wheel-sched")
@click.option("--config", "file", metavar="FILE", help="Settings file (default: ./wheel-sched.toml).")
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version.")
@click.pass_context
def cli(ctx: click.Context, /, file: str | None, **flags: Any) -> None:
    comment_by(None)
    ctx.obj = Session(flags, file)

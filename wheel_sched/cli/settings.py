"""`wheel-sched config show`: the settings and, with --origin, where each value comes from."""

from __future__ import annotations

import click

from wheel_sched.cli.options import Session, json_option, pass_session
from wheel_sched.cli.output import emit, table
from wheel_sched.redacting import redacted


@click.group(help="Show the settings and where they come from.")
def config() -> None:
    """Group of the commands about settings."""


@config.command()
@click.option("--origin", is_flag=True, help="Also show where each value comes from.")
@json_option
@pass_session
def show(session: Session, origin: bool, as_json: bool) -> None:
    """Show the settings of this command line. Passwords are hidden.

    \b
    Examples:
      wheel-sched config show --origin
      WHEEL_SCHED_NAMESPACE=orders wheel-sched config show --json
    """
    loaded = session.loaded
    values = {**loaded.values, "store": redacted(loaded.values["store"])}
    if as_json:
        emit({name: {"value": v, "origin": loaded.origins[name]} for name, v in values.items()} if origin else values)
        return
    texts = {name: "-" if value in (None, "") else str(value) for name, value in values.items()}
    if origin:
        table(("setting", "value", "origin"), [(name, text, loaded.origins[name]) for name, text in texts.items()])
    else:
        table(("setting", "value"), list(texts.items()))

"""The columns that reads return and writes accept. Later releases may add columns, and never change one."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from wheel_sched.errors import ConfigError

ITEMS = MappingProxyType(
    {
        "id": "string",
        "state": "string",
        "shard": "int",
        "at_ms": "bigint",  # due, end of lease or time of death
        "topic": "string",
        "version": "bigint",
        "reason": "string",
        "route": "string",
        "refs": "array<string>",
        "body": "binary",
    }
)
LETTERS = MappingProxyType(
    {
        "id": "string",
        "state": "string",
        "shard": "int",
        "at_ms": "bigint",
        "topic": "string",  # where the message first failed
        "target": "string",  # where the message goes next
        "reason": "string",
        "attempt": "int",
        "replays": "int",
        "first_failed_ms": "bigint",
        "last_failed_ms": "bigint",
        "due_ms": "bigint",
        "error_class": "string",
        "error_message": "string",
        "fingerprint": "string",
        "status": "int",
        "consumer_group": "string",
        "key": "binary",
        "value": "binary",
    }
)
DAMAGE = MappingProxyType(
    {
        "id": "string",
        "state": "string",  # the state whose index holds it; "" when no index does
        "shard": "int",
        "at_ms": "bigint",
        "route": "string",
        "flaw": "string",  # "", "no record", "unreadable record", "no place" or "wrong shard"
    }
)
ATTEMPTS = MappingProxyType(  # the rows of `retry_topic.history`
    {
        "id": "string",
        "topic": "string",
        "attempt": "int",
        "due_ms": "bigint",
        "started_ms": "bigint",
        "outcome": "string",
        "error_class": "string",
        "shard": "int",
    }
)
SHAPES = MappingProxyType({"items": ITEMS, "letters": LETTERS, "damage": DAMAGE, "attempts": ATTEMPTS})
LIGHT = frozenset({"id", "state", "shard", "at_ms"})  # known without reading records

REQUIRED = ("id",)
BODIES = ("body", "value")
TAKEN = MappingProxyType(
    {
        "id": ("string",),
        "due_ms": ("bigint", "int"),
        "due": ("timestamp",),
        "topic": ("string",),
        "body": ("binary", "string"),
        "value": ("binary", "string"),
        "key": ("binary", "string"),
        "headers": ("map<string,string>", "map<string,binary>"),
        "route": ("string",),
        "refs": ("array<string>",),
    }
)


def ddl(columns: MappingProxyType[str, str]) -> str:
    """The columns as a DDL string of Spark."""
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())


def check_read(columns: dict[str, str], form: str) -> None:
    """Check that a form has these columns.

    Raises:
        ConfigError: lists every column that the form does not have.
    """
    shape = SHAPES[form]
    problems = [
        f"there is no column {name} {kind} in form {form!r}"
        for name, kind in columns.items()
        if shape.get(name) != kind
    ]
    if problems:
        raise ConfigError([*problems, f"expected some of: {ddl(shape)}"])


def misfits(columns: Mapping[str, str], taken: Mapping[str, tuple[str, ...]]) -> list[str]:
    """The problems with the columns of a write: wrong types and unknown names."""
    return [
        f"expected column {name} to be {' or '.join(taken[name])}, got: {kind}"
        for name, kind in columns.items()
        if name in taken and kind not in taken[name]
    ] + [
        f"column {name!r} is unknown; drop it, or rename it to one of {', '.join(taken)}"
        for name in columns
        if name not in taken
    ]


def check_written(columns: dict[str, str]) -> None:
    """Check the columns of a DataFrame before its rows are computed.

    Raises:
        ConfigError: lists every problem; nothing was written.
    """
    problems = [f"expected a column {name}, got: {', '.join(columns)}" for name in REQUIRED if name not in columns]
    problems += misfits(columns, TAKEN)
    if sum(name in columns for name in BODIES) != 1:
        problems.append("expected a column body (bytes as they are) or a column value (a message's payload), not both")
    if "due_ms" in columns and "due" in columns:
        problems.append("expected a column due_ms or a column due, got both")
    if "value" in columns and "topic" not in columns:
        problems.append("expected a column topic beside value: the message goes to this topic")
    if "body" in columns and (extra := [name for name in ("key", "headers") if name in columns]):
        problems.append(f"expected {' and '.join(extra)} beside value, not beside body: a body holds them already")
    if problems:
        raise ConfigError([*problems, "nothing was written"])

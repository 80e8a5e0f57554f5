"""The columns of a topic. They are those of the JVM connector."""

from __future__ import annotations

from types import MappingProxyType

from retry_topic.spark.source.schemas import misfits
from wheel_sched.errors import ConfigError

HEADERS = "array<struct<key:string,value:binary>>"
COLUMNS = MappingProxyType(
    {
        "key": "binary",
        "value": "binary",
        "topic": "string",
        "partition": "int",
        "offset": "bigint",
        "timestamp": "timestamp",
        "timestampType": "int",
        "headers": HEADERS,
    }
)
TAKEN = MappingProxyType(
    {
        "topic": ("string",),
        "key": ("binary", "string"),
        "value": ("binary", "string"),
        "headers": (HEADERS,),
    }
)


def check_written(columns: dict[str, str], has_topic: bool) -> None:
    """Check the columns of a DataFrame before its rows are computed.

    Args:
        columns: the type of each column, by name.
        has_topic: whether the option `topic` names one topic for all rows.

    Raises:
        ConfigError: lists every problem; nothing was written.
    """
    problems = misfits(columns, TAKEN)
    if "value" not in columns:
        problems.append(f"expected a column value, got: {', '.join(columns)}")
    if ("topic" in columns) == has_topic:
        problems.append("expected a column topic, or the option topic for all rows, and not both")
    if problems:
        raise ConfigError([*problems, "nothing was written"])

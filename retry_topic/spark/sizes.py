"""The size of a DataFrame before it is written. No task of a write sees all rows, so the driver counts them first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retry_topic.spark.faults import plain_errors
from retry_topic.spark.source.pacing import BYTES_BESIDE_A_BODY
from retry_topic.spark.source.schemas import check_written

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_PARTS = ("id", "body", "value", "key")


def row_bytes(columns: list[str]) -> Column:
    """About how many bytes a row needs on the server. Headers and refs count as a constant for each row."""
    from pyspark.sql import functions as f

    parts = [f.coalesce(f.octet_length(name), f.lit(0)) for name in _PARTS if name in columns]
    return sum(parts, f.lit(BYTES_BESIDE_A_BODY)).cast("bigint")


@plain_errors
def sizes(rows: DataFrame) -> dict[str, str]:
    """The options `rows` and `bytes` of `format("wheelsched")` for a DataFrame.

    This computes the DataFrame once. Call `persist()` on it first when that is expensive.

    Raises:
        ConfigError: the DataFrame cannot be written; its columns are wrong.
    """
    from pyspark.sql import functions as f

    check_written({field.name: field.dataType.simpleString() for field in rows.schema})
    found = rows.agg(f.count("*").alias("rows"), f.sum(row_bytes(rows.columns)).alias("bytes")).first()
    counted = {} if found is None else found.asDict()
    return {name: str(counted.get(name) or 0) for name in ("rows", "bytes")}

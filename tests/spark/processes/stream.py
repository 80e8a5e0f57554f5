"""Runs a streaming query in its own process, which a test kills.

Arguments: URL, source, checkpoint, the id at which to stop, and the file that reports the stop.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from retry_topic.spark import spark_session

if TYPE_CHECKING:
    import pyarrow as pa


def main(url: str, source: str, checkpoint: str, stop_at: str, reached: str) -> None:
    def stopping(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for at in range(0, batch.num_rows, 100):
                part = batch.slice(at, 100)
                if stop_at and stop_at in part.column("id").to_pylist():
                    Path(reached).touch()
                    time.sleep(600)  # until it is killed
                yield part

    settings = {
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
        # this query is too small to gain from compiled code or a revised plan
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
    }
    spark = spark_session("local[2]", settings=settings)
    frame = spark.readStream.schema("id string, value string").option("maxFilesPerTrigger", "1").json(source)
    stepped = frame.mapInArrow(stopping, "id string, value string")
    rows = stepped.selectExpr("id", "1L due_ms", "'t' topic", "value")
    writer = rows.writeStream.format("wheelsched").option("store", url).trigger(availableNow=True)
    query = writer.option("checkpointLocation", checkpoint).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])

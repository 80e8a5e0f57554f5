"""Runs a stream from topic to topic in its own process. Arguments: servers, source, target, checkpoint, fault.

The fault happens when Spark partition 0 of an epoch is written and half of partition 1 is produced. With
"kill:EPOCH:FILE" the process creates the file and waits until a test kills it. With "fail:EPOCH" the task fails, and
fails again at each repetition.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import TaskContext

from retry_topic.spark import spark_session
from retry_topic.spark.kafka.marks import Part, rows_written
from retry_topic.spark.kafka.options import broker_of
from retry_topic.spark.source.writing import query_and_epoch

if TYPE_CHECKING:
    import pyarrow as pa


def main(servers: str, source: str, target: str, checkpoint: str, fault: str) -> None:
    kind, _, rest = fault.partition(":")
    number, _, reached = rest.partition(":")

    def struck(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        query_id, epoch = query_and_epoch()
        context = TaskContext.get()
        assert context is not None
        if not kind or epoch != int(number) or context.partitionId() != 1:
            yield from batches
            return
        for batch in batches:
            yield batch.slice(0, batch.num_rows // 2)
            groups = broker_of((("bootstrap.servers", servers),)).groups
            deadline = time.monotonic() + 150
            while rows_written(groups, Part(f"query-{query_id}", epoch, 0)) is None:
                if time.monotonic() > deadline:
                    raise RuntimeError("part 0 was not written within 150 s")
                time.sleep(0.05)  # polls until the deadline
            if kind == "kill":
                Path(reached).touch()
                time.sleep(600)  # until it is killed
            raise RuntimeError("planted failure")

    spark = spark_session("local[2,2]", settings={"spark.sql.shuffle.partitions": "2"})
    options = {"kafka.bootstrap.servers": servers}
    stream = spark.readStream.format("wheelsched-kafka").options(
        **options, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="600"
    )
    rows = stream.load().select("key", "value").mapInArrow(struck, "key binary, value binary")
    writer = rows.writeStream.format("wheelsched-kafka").options(**options, topic=target)
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Replays a dead topic in its own process. Arguments: servers, dead topic, origin, file.

When Spark partition 0 is written and half of partition 1 is produced, the process creates the file. Then it waits until
a test kills it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retry_topic.spark import spark_session
from retry_topic.spark.jobs import dead_topic

if TYPE_CHECKING:
    import pyarrow as pa


def main(servers: str, topic: str, origin: str, reached: str) -> None:
    sender: Any = dead_topic._Sender

    def striking(ledger: str, job: str, to: str) -> Any:
        inner = sender(ledger, job, to)

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from pyspark import TaskContext

            from retry_topic.spark.kafka.marks import Part, rows_written
            from retry_topic.spark.kafka.options import broker_of

            context = TaskContext.get()
            assert context is not None
            if context.partitionId() != 1:
                yield from inner(batches)
                return
            for batch in inner(batches):
                yield batch.slice(0, batch.num_rows // 2)
                groups = broker_of((("bootstrap.servers", servers),)).groups
                deadline = time.monotonic() + 200
                while rows_written(groups, Part(f"job-{job}", 0, 0)) is None:
                    if time.monotonic() > deadline:
                        raise RuntimeError("part 0 was not written within 200 s")
                    time.sleep(0.05)  # polls until the deadline
                Path(reached).touch()
                time.sleep(600)  # until it is killed

        return run

    setattr(dead_topic, "_Sender", striking)  # noqa: B010  # the fault comes between the job and its sink
    spark = spark_session("local[2]", settings={"spark.sql.shuffle.partitions": "2"})
    letters = dead_topic.topic_letters(spark, servers, topic)
    dead_topic.replay_topic(letters.where(f"topic = '{origin}'"), servers, topic)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A stream writes to a store while a consumer takes messages out. Each message is stored once, whatever fails."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from wheel_sched.store import DelayStore

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

EPOCHS, ROWS = 3, 2_000
PAYLOAD = "x" * 900  # so that rows don't wait in the buffers between Spark's processes


@pytest.fixture
def source(tmp_path: Path) -> str:
    """A folder with three files. The stream reads each file as one epoch."""
    folder = tmp_path / "in"
    folder.mkdir()
    for epoch in range(EPOCHS):
        lines = (f'{{"id": "e{epoch}-{row}", "value": "{PAYLOAD}"}}\n' for row in range(ROWS))
        (folder / f"{epoch}.json").write_text("".join(lines), "utf-8")
        os.utime(folder / f"{epoch}.json", (1_700_000_000 + epoch, 1_700_000_000 + epoch))
    return str(folder)


@pytest.fixture(autouse=True)
def _small_batches(spark: SparkSession) -> Iterator[None]:
    """Set small Arrow batches, so that part of an epoch is in the store when a later row fails."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    spark.conf.set(name, "100")
    yield
    spark.conf.set(name, str(before))


EVERYTHING = {f"e{epoch}-{row}": 1 for epoch in range(EPOCHS) for row in range(ROWS)}


def failing_at(epoch: int, row: int, url: str, should_fail: Callable[[], bool]) -> Any:
    """Return a step of the stream that passes rows on. At one row of `epoch` it fails if `should_fail` returns True.

    It fails only when some rows of the epoch are in the store.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time

        import redis

        def partly_stored() -> bool:
            with redis.Redis.from_url(url) as client:
                return any(client.scan_iter(match=f"*:seen:{epoch}:*", count=1000))

        for batch in batches:
            for at in range(0, batch.num_rows, 100):
                part = batch.slice(at, 100)
                if f"e{epoch}-{row}" in part.column("id").to_pylist() and should_fail():
                    deadline = time.monotonic() + 60
                    while not partly_stored():
                        if time.monotonic() > deadline:
                            raise RuntimeError("nothing of the epoch was stored within 60 s")
                        time.sleep(0.05)  # polls until the deadline
                    raise RuntimeError("planted failure")
                yield part

    return run


def start(spark: SparkSession, source: str, checkpoint: Path, options: dict[str, str], step: Any) -> Any:
    frame = spark.readStream.schema("id string, value string").option("maxFilesPerTrigger", "1").json(source)
    rows = frame.mapInArrow(step, "id string, value string").selectExpr("id", "1L due_ms", "'t' topic", "value")
    writer = rows.writeStream.format("wheelsched").options(**options).trigger(availableNow=True)
    return writer.option("checkpointLocation", str(checkpoint)).start()


def left_behind(store: DelayStore) -> list[bytes]:
    """The keys that remember which ids an open epoch stored. After the stream there must be none."""
    client: Any = getattr(store.backend, "client")  # noqa: B009  # only the backend of a server has this attribute
    return list(client.scan_iter(match="*:seen:*", count=1000))


def test_a_task_that_fails_half_way_brings_the_rest_when_it_is_repeated(
    spark: SparkSession, store: DelayStore, options: dict[str, str], source: str, tmp_path: Path, consumer: Any
) -> None:
    """A task fails when part of its epoch is stored and consumed. Spark repeats the task, and no row is lost or
    doubled."""
    once = tmp_path / "failed"

    def fail_once() -> bool:
        try:
            once.touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    query = start(spark, source, tmp_path / "checkpoint", options, failing_at(1, 1_500, options["store"], fail_once))
    query.awaitTermination(300)
    assert query.exception() is None
    assert once.exists()
    consumer.drain()
    assert consumer.seen == EVERYTHING
    assert left_behind(store) == []


def test_an_epoch_that_failed_for_good_is_made_good_from_the_checkpoint(
    spark: SparkSession, store: DelayStore, options: dict[str, str], source: str, tmp_path: Path, consumer: Any
) -> None:
    """All four attempts of a task fail, and the query ends. A restart from the checkpoint stores the missing rows."""
    broken = tmp_path / "broken"
    broken.touch()
    step = failing_at(1, 1_500, options["store"], broken.exists)
    query = start(spark, source, tmp_path / "checkpoint", options, step)
    with pytest.raises(StreamingQueryException, match="planted failure"):
        query.awaitTermination(240)
    broken.unlink()
    again = start(spark, source, tmp_path / "checkpoint", options, step)
    again.awaitTermination(300)
    assert again.exception() is None
    consumer.drain()
    assert consumer.seen == EVERYTHING
    assert left_behind(store) == []


@pytest.mark.timeout(1_000)
def test_a_driver_that_is_killed_twice_leaves_nothing_out_and_nothing_twice(
    store: DelayStore,
    redis_url: str,
    source: str,
    tmp_path: Path,
    consumer: Any,
    kill_session: Callable[[subprocess.Popen[bytes]], None],
) -> None:
    """Driver, JVM and workers are killed twice in the middle of an epoch. Still each row is stored once."""

    def at_work(epoch: int, reached: Path) -> bool:
        seen = list(consumer.seen)  # a copy, because the consumer's thread adds ids meanwhile
        return reached.exists() and any(item_id.startswith(f"e{epoch}-") for item_id in seen)

    program = Path(__file__).parent / "processes" / "stream.py"
    for epoch in (1, 2, None):
        stop_at = "" if epoch is None else f"e{epoch}-1500"
        reached = tmp_path / f"reached-{epoch}"
        process = subprocess.Popen(
            [sys.executable, str(program), redis_url, source, str(tmp_path / "checkpoint"), stop_at, str(reached)],
            start_new_session=True,
            env={**os.environ, "SPARK_LOCAL_DIRS": str(tmp_path / "local")},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            if epoch is None:
                assert process.wait(300) == 0
            else:
                consumer.wait_until(partial(at_work, epoch, reached), f"the kill point in epoch {epoch}", 300)
                assert process.poll() is None
        finally:
            kill_session(process)
    consumer.drain()
    assert consumer.seen == EVERYTHING

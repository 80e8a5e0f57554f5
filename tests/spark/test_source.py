"""`format("wheelsched")` in batches: a read returns what a write stored, and bad input is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import functions as f

from retry_topic.message.encoding import decode_body
from retry_topic.message.headers import without_ours
from retry_topic.spark import sizes, spark_session
from wheel_sched.store import DelayStore, Done
from wheel_sched.store.core.items import Item

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

DUE_MS = 4_000_000_000_000


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    """1,500 messages of two topics, some with keys and headers."""
    return spark.range(1500).select(
        f.format_string("m%d", "id").alias("id"),
        (f.lit(DUE_MS) + f.col("id")).alias("due_ms"),
        f.when(f.col("id") % 3 == 0, "mail").otherwise("orders").alias("topic"),
        f.format_string('{"n": %d}', "id").alias("value"),
        f.when(f.col("id") % 2 == 0, f.format_string("k%d", "id")).alias("key"),
        f.create_map(f.lit("trace"), f.col("id").cast("string")).alias("headers"),
    )


def read(spark: SparkSession, options: dict[str, str], **more: str) -> DataFrame:
    return spark.read.format("wheelsched").options(**options, **more).load()


def test_messages_go_in_once_and_come_out_as_they_were(
    spark: SparkSession, store: DelayStore, options: dict[str, str], rows: DataFrame, write: Callable[..., None]
) -> None:
    """A write stores payload, key, headers, topic and due time unchanged. A second write with the same job id
    stores nothing, even after all messages are settled."""
    write(rows, job_id="import-1")
    assert store.counts().now == {("due", "mail"): 500, ("due", "orders"): 1000}
    (found,) = store.get(["m8"])
    assert found is not None
    message = decode_body(found.body)
    assert (found.score_ms, found.topic, message.topic) == (DUE_MS + 8, "orders", "orders")
    assert (message.value, message.key, without_ours(message.headers)) == (b'{"n": 8}', b"k8", (("trace", b"8"),))
    assert message.header("retry-id") == found.id.encode()
    letters = {row["id"]: row for row in read(spark, options, form="letters").collect()}
    assert len(letters) == 1500
    assert (letters["m9"]["value"], letters["m9"]["key"], letters["m9"]["target"]) == (b'{"n": 9}', None, "mail")
    store.reschedule([f"m{n}" for n in range(1500)], 0)
    for shard in range(store.shards):
        while claim := store.claim(500, shard=shard):
            if not claim.items:
                break
            store.settle(claim, [Done(item.id) for item in claim.items])
    write(rows, job_id="import-1")
    assert not any(store.counts().now.values())
    write(rows.limit(10), job_id="import-2")
    assert sum(store.counts().now.values()) == 10


def test_filters_reach_the_store_and_options_do_the_same(
    spark: SparkSession, store: DelayStore, options: dict[str, str], rows: DataFrame, write: Callable[..., None]
) -> None:
    """The store itself applies filters on state, shard and at_ms. Filters and options return the same rows."""
    write(rows)
    store.bury([(Item(f"d{n}", 5_000 + n, b"x", "mail"), "broken: badly") for n in range(20)])
    everything = read(spark, options)
    chosen = everything.where((f.col("state") == "due") & (f.col("at_ms") >= DUE_MS + 1400) & (f.col("shard") != 1))
    plan = chosen._jdf.queryExecution().executedPlan().toString()
    assert f"{DUE_MS + 1400}" not in plan
    ids = {row["id"] for row in chosen.collect()}
    selected = read(spark, options, states="due", from_ms=str(DUE_MS + 1400), shards="0,2")
    assert {row["id"] for row in selected.collect()} == ids
    assert 0 < len(ids) < 100
    dead = {row["id"]: (row["at_ms"], row["reason"], row["body"]) for row in everything.where("state='dead'").collect()}
    assert dead == {f"d{n}": (5_000 + n, "broken: badly", b"x") for n in range(20)}
    assert everything.where("at_ms > 5 and at_ms < 3").count() == 0
    assert everything.where("shard = 99").count() == 0
    assert everything.where("state = 'gone'").count() == 0
    assert read(spark, options, topic="mail").count() == 520
    light = spark.read.format("wheelsched").options(**options).schema("at_ms bigint, id string").load()
    assert light.agg(f.count("*"), f.max("at_ms")).first() == (1520, DUE_MS + 1499)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (["'a' value", "'t' topic"], "expected a column id"),
        (["'x' id", "'a' value"], "expected a column topic"),
        (["'x' id", "'a' value", "'a' body", "'t' topic"], "a column body"),
        (["7 id", "'a' body"], "expected column id to be string"),
        (["'x' id", "'a' body", "'tomorrow' due_ms"], "expected column due_ms to be bigint"),
        (["'x' id", "'a' body", "1 colour"], "column 'colour' is unknown"),
    ],
)
def test_columns_that_do_not_fit_are_refused(
    spark: SparkSession, store: DelayStore, write: Callable[..., None], columns: list[str], words: str
) -> None:
    """Missing, unknown and wrongly typed columns are errors, and nothing is stored."""
    with pytest.raises(PySparkException, match=words):
        write(spark.range(5).selectExpr(*columns))
    assert not any(store.counts().now.values())


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"nmespace": "x"}, "there is no option 'nmespace'"),
        ({"namespace": "elsewhere"}, "there is no namespace 'elsewhere'"),
        ({"states": "due,gone"}, "expected option states"),
        ({"shards": "9"}, "expected option shards"),
        ({"from_ms": "yesterday"}, "expected option from_ms"),
        ({"store": "memory:"}, "expected option store"),
        ({"form": "poem"}, "expected option form"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    spark: SparkSession, options: dict[str, str], more: dict[str, str], words: str
) -> None:
    """A wrong option of a read raises an error. It never gives an empty table."""
    with pytest.raises(PySparkException, match=words):
        read(spark, options | more).count()


def test_a_row_without_an_id_stops_the_batch(
    spark: SparkSession, store: DelayStore, write: Callable[..., None]
) -> None:
    """A row without an id fails the batch. After the row is corrected, the same job stores every row once."""
    rows = spark.range(40).selectExpr("if(id = 7, null, concat('m', id)) id", "'a' body", "1L due_ms")
    with pytest.raises(PySparkException, match="have no id"):
        write(rows.coalesce(1), job_id="j")
    write(rows.na.fill("seven"), job_id="j")
    assert sum(store.counts().now.values()) == 40


def test_a_store_is_not_overwritten(spark: SparkSession, store: DelayStore, options: dict[str, str]) -> None:
    """A write with mode "overwrite" is refused, and the store does not change."""
    store.schedule([Item("a", DUE_MS, b"")])
    rows: Any = spark.range(1).selectExpr("'x' id", "'a' body", "1L due_ms")
    with pytest.raises(PySparkException, match="expected mode append"):
        rows.write.format("wheelsched").mode("overwrite").options(**options).save()
    assert store.counts().total("due") == 1


def test_a_spread_and_a_rate_move_dues(
    spark: SparkSession, store: DelayStore, options: dict[str, str], rows: DataFrame, write: Callable[..., None]
) -> None:
    """`spread_ms` and `rate` move due times later, never earlier. A spread gives the same delays in every run.

    A rate gives overdue rows due times from now on.
    """
    write(rows.limit(300), spread_ms="60000", job_id="a")
    moved = {item.id: item.score_ms - DUE_MS - int(item.id[1:]) for item in store.list_items("due", limit=500).found}
    assert len(moved) == 300
    assert all(0 <= late < 60_000 for late in moved.values())
    assert len(set(moved.values())) > 250
    store.cancel(sorted(moved))
    write(rows.limit(300).repartition(3), spread_ms="60000", job_id="b")
    again = {item.id: item.score_ms - DUE_MS - int(item.id[1:]) for item in store.list_items("due", limit=500).found}
    assert again == moved
    store.cancel(sorted(again))
    late: Any = rows.limit(300).selectExpr("id", "if(id < 'm2', 5L, null) due_ms", "topic", "value")
    size = sizes(late)
    assert size["rows"] == "300"
    before_ms = store.now_ms()
    write(late, rate="10", job_id="c", **size)
    now = store.list_items("due", limit=500).found
    due = [item.score_ms for item in now]
    assert len(due) + store.counts().total("held") == 300  # without a due time of its own a row is parked
    assert min(due) >= before_ms
    assert 15_000 < max(due) - min(due) <= 30_000  # 300 at 10 a second take half a minute


def used_memory(store: DelayStore) -> int:
    """The server's memory just after it has collected the garbage of scripts, as it does every fifty calls or so.

    Without this, the rows may fit into memory that the server frees later.
    """
    least: int = store.backend.info()["used_memory"]
    for _ in range(150):
        store.counts()
        least = min(least, store.backend.info()["used_memory"])
    return least


def test_rows_that_do_not_fit_are_refused(
    spark: SparkSession, store: DelayStore, rows: DataFrame, write: Callable[..., None]
) -> None:
    """If the options tell the size of all rows, a write that needs too much memory fails before a task starts.

    Without the size, each block of rows is checked before it is stored.
    """
    used = used_memory(store)
    size = sizes(rows)
    assert 1_500 * 200 < int(size["bytes"]) < 1_500 * 300
    with pytest.raises(PySparkException, match=r"1,500 rows need about 0\.\d MB .*none of them was stored"):
        write(rows, memory_limit=str(used + 50_000), job_id="j", **size)
    with pytest.raises(PySparkException, match=r"the rows need .* more memory"):
        write(rows, memory_limit=str(used // 2), job_id="j")
    with pytest.raises(PySparkException, match="the next 1,500 rows need"):
        write(rows.coalesce(1), memory_limit=str(used_memory(store) + 50_000), job_id="j")
    assert not any(store.counts().now.values())
    write(rows, memory_limit=str(used + 50_000_000), job_id="j", **size)
    assert sum(store.counts().now.values()) == 1_500


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"rate": "10"}, "expected option rows beside rate"),
        ({"rate": "0", "rows": "5"}, "above 0"),
        ({"rate": "ten", "rows": "5"}, "expected option rate"),
        ({"rate": "10", "rows": "5", "spread_ms": "10"}, "got both"),
        ({"spread_ms": "-1"}, "expected option spread_ms"),
        ({"states": "due"}, "expected no option states for a write"),
        ({"durability": "sometimes"}, "durability"),
        ({"durability": "replicated"}, "needs connected replicas: 1"),
    ],
)
def test_wishes_that_do_not_fit_are_refused(
    spark: SparkSession,
    store: DelayStore,
    rows: DataFrame,
    write: Callable[..., None],
    more: dict[str, str],
    words: str,
) -> None:
    """Wrong options of a write raise an error, and nothing is stored."""
    with pytest.raises(PySparkException, match=words):
        write(rows, **more)
    assert not any(store.counts().now.values())


def test_what_a_stream_cannot_have_is_refused(
    spark: SparkSession, store: DelayStore, options: dict[str, str], tmp_path: Path
) -> None:
    """A stream has no last row, so the options rate, rows, bytes and job_id are errors. spread_ms and memory_limit
    are allowed."""
    spark.range(20).selectExpr("concat('s', id) id", "'x' value").write.json(str(tmp_path / "in"))
    stream = spark.readStream.schema("id string, value string").json(str(tmp_path / "in"))
    shaped = stream.selectExpr("id", f"{DUE_MS}L due_ms", "'t' topic", "value")

    def run(**more: str) -> None:
        writer = shaped.writeStream.format("wheelsched").options(**options, **more).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        query.awaitTermination(200)

    with pytest.raises(StreamingQueryException, match="expected no option rate for a stream") as caught:
        run(rate="10", rows="20", bytes="9000", job_id="j")
    assert all(f"no option {name} for a stream" in str(caught.value) for name in ("rows", "bytes", "job_id"))
    with pytest.raises(StreamingQueryException, match="more memory"):
        run(memory_limit="1000")
    assert not any(store.counts().now.values())
    run(spread_ms="1000", memory_limit=str(1 << 40), durability="memory")
    dues = [item.score_ms - DUE_MS for item in store.list_items("due", limit=100).found]
    assert len(dues) == 20
    assert 0 <= min(dues) < max(dues) < 1_000


def test_a_write_waits_for_the_durability_it_names(
    spark: SparkSession, store: DelayStore, rows: DataFrame, write: Callable[..., None], redis_client: Any
) -> None:
    """Durability `fsync` is an error if the server replies before it syncs to disk.

    On a server that syncs before it replies, every write waits for the confirmation, which the test sees as calls of
    CONFIG GET.
    """

    def asked() -> int:
        return int(redis_client.info("commandstats").get("cmdstat_config|get", {}).get("calls", 0))

    before = asked()
    write(rows.limit(40), job_id="a")
    assert asked() == before
    with pytest.raises(PySparkException, match="CONFIG SET appendfsync always"):
        write(rows.limit(40), job_id="b", durability="fsync")
    redis_client.config_set("appendfsync", "always")
    try:
        write(rows.limit(40), job_id="c", durability="fsync")
    finally:
        redis_client.config_set("appendfsync", "everysec")
    assert asked() > before + 2


def test_a_store_that_is_away_fails_the_query(spark: SparkSession, options: dict[str, str]) -> None:
    """If the store cannot be reached, a query fails instead of returning no rows."""
    with pytest.raises(PySparkException, match="no connection to the server"):
        read(spark, {"store": "unix:///nonexistent/redis.sock"}).count()


def test_the_session_is_the_one_that_runs(spark: SparkSession) -> None:
    """A second call of `spark_session` returns the running session."""
    assert spark_session() is spark

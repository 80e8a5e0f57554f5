"""`format("wheelsched")` in batches: what goes in comes out, and what cannot be is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from retry_topic.spark import spark_session
from retry_topic.wire import decode_body
from wheel_sched.store import DelayStore, Done
from wheel_sched.store.items import Item

if TYPE_CHECKING:
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
    """Payload, key, headers, topic and due; a second run of the job stores nothing, also when all have gone out."""
    write(rows, job_id="import-1")
    assert store.counts().now == {("due", "mail"): 500, ("due", "orders"): 1000}
    (found,) = store.get(["m8"])
    assert found is not None
    message = decode_body(found.body)
    assert (found.score_ms, found.topic, message.topic) == (DUE_MS + 8, "orders", "orders")
    assert (message.value, message.key, message.headers) == (b'{"n": 8}', b"k8", (("trace", b"8"),))
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
    """Filters on state, shard and at_ms leave Spark's plan; whichever way it is said, the same rows come."""
    write(rows)
    store.bury([(Item(f"d{n}", 5_000 + n, b"x", "mail"), "broken: badly") for n in range(20)])
    everything = read(spark, options)
    chosen = everything.where((f.col("state") == "due") & (f.col("at_ms") >= DUE_MS + 1400) & (f.col("shard") != 1))
    plan = chosen._jdf.queryExecution().executedPlan().toString()
    assert f"{DUE_MS + 1400}" not in plan
    ids = {row["id"] for row in chosen.collect()}
    said = read(spark, options, states="due", from_ms=str(DUE_MS + 1400), shards="0,2")
    assert {row["id"] for row in said.collect()} == ids
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
        (["'x' id", "'a' body", "1 colour"], "no use for column 'colour'"),
    ],
)
def test_columns_that_do_not_fit_are_refused(
    spark: SparkSession, store: DelayStore, write: Callable[..., None], columns: list[str], words: str
) -> None:
    """Before a row is looked at."""
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
    """A mistyped name is an error, never an empty table."""
    with pytest.raises(PySparkException, match=words):
        read(spark, options | more).count()


def test_a_row_without_an_id_stops_the_batch(
    spark: SparkSession, store: DelayStore, write: Callable[..., None]
) -> None:
    """And the rest of the job stands under its id: with the row corrected the same job stores every row once."""
    rows = spark.range(40).selectExpr("if(id = 7, null, concat('m', id)) id", "'a' body", "1L due_ms")
    with pytest.raises(PySparkException, match="have no id"):
        write(rows.coalesce(1), job_id="j")
    write(rows.na.fill("seven"), job_id="j")
    assert sum(store.counts().now.values()) == 40


def test_a_store_is_not_overwritten(spark: SparkSession, store: DelayStore, options: dict[str, str]) -> None:
    """Mode overwrite is refused, and everything stays."""
    store.schedule([Item("a", DUE_MS, b"")])
    rows: Any = spark.range(1).selectExpr("'x' id", "'a' body", "1L due_ms")
    with pytest.raises(PySparkException, match="expected mode append"):
        rows.write.format("wheelsched").mode("overwrite").options(**options).save()
    assert store.counts().total("due") == 1


def test_a_store_that_is_away_fails_the_query(spark: SparkSession, options: dict[str, str]) -> None:
    """Nothing is left out in silence."""
    with pytest.raises(PySparkException, match="no answer from the server"):
        read(spark, {"store": "unix:///nonexistent/redis.sock"}).count()


def test_the_session_is_the_one_that_runs(spark: SparkSession) -> None:
    """Asked again, the helper answers the session that is there."""
    assert spark_session() is spark

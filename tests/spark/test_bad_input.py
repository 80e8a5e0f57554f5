"""Bad input is refused before anything is written, or each bad row is written to the rejects. No row is lost
silently."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from retry_topic.spark.faults import JobFailed
from retry_topic.spark.jobs import audit, backfill, backtest, dead_letters, replay, slo, triage
from retry_topic.spark.jobs.history import load_history, load_table, store_history
from retry_topic.spark.jobs.store import place_of
from retry_topic.spark.source.options import StorePlace
from wheel_sched.errors import ConfigError, NamespaceMismatch, Rejected, StoreError
from wheel_sched.store import DelayStore, History, Item

if TYPE_CHECKING:
    import redis
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

DUE_MS = 4_000_000_000_000
COLUMNS = "id string, topic string, attempt int, due_ms long, started_ms long, outcome string, error_class string"


@pytest.fixture
def place(redis_url: str, store: DelayStore) -> StorePlace:
    return place_of(redis_url)


def rows_of(spark: SparkSession, count: int = 30) -> DataFrame:
    return spark.range(count).selectExpr("concat('m', id) id", f"{DUE_MS}L + id due_ms", "'t' topic", "'x' value")


def nothing(store: DelayStore) -> bool:
    return not any(store.counts().now.values())


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (["1L due_ms", "'a' body"], "expected a column id"),
        (["'x' id", "1L due_ms"], "a column body"),
        (["'x' id", "'a' body", "array(1) refs"], "expected column refs"),
        (["'x' id", "'a' body", "1.5D due_ms"], "expected column due_ms to be bigint"),
        (["'x' id", "'a' body", "1L due_ms", "2 colour"], "column 'colour' is unknown"),
    ],
)
def test_missing_columns_and_wrong_types_are_refused(
    spark: SparkSession, store: DelayStore, place: StorePlace, columns: list[str], words: str
) -> None:
    """The job refuses wrong columns before a row is computed. The error lists every problem."""
    with pytest.raises(ConfigError, match=words):
        backfill(spark.range(5).selectExpr(*columns), place, job_id="j")
    assert nothing(store)


def test_null_ids_and_dues_that_have_passed_are_refused_or_rejected(
    spark: SparkSession, store: DelayStore, place: StorePlace, tmp_path: Path
) -> None:
    """A row without an id, or with a due time in the past, stops the job before it stores anything.

    With `rejects`, the row is written to that folder with the reason. With `past`, due times in the past are allowed.
    """
    rows = rows_of(spark).selectExpr(
        "if(id = 'm3', null, id) id", "if(id = 'm5', 1000L, due_ms) due_ms", "topic", "value"
    )
    with pytest.raises(Rejected, match="nothing was stored"):
        backfill(rows, place, job_id="j")
    assert nothing(store)
    folder = str(tmp_path / "rejects")
    done = backfill(rows, place, job_id="j", rejects=folder)
    assert done.bad == {"there is no id": 1, "the due time has passed": 1}
    assert {row["flaw"] for row in spark.read.parquet(folder).collect()} == set(done.bad)
    assert store.counts().total("due") == done.stored == 28
    assert backfill(rows.where("id = 'm5'"), place, job_id="late", past=True).stored == 1


def test_a_due_that_is_no_number_is_a_bad_row(
    spark: SparkSession, store: DelayStore, place: StorePlace, tmp_path: Path
) -> None:
    """In a JSON Lines file, the due time of one row is text. Without `rejects` the job fails. With `rejects` it
    writes this row to that folder and stores the others."""
    file = tmp_path / "rows.jsonl"
    lines: list[dict[str, Any]] = [{"n": n, "at": DUE_MS + n} for n in range(20)]
    lines[11]["at"] = "tomorrow"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    columns = {"id": "concat('m', n)", "due_ms": "at", "topic": "'t'", "value": "'x'"}
    rows = load_table(spark, str(file))
    with pytest.raises(Rejected, match="1 rows: there is no due"):
        backfill(rows, place, job_id="j", columns=columns)
    assert nothing(store)
    assert backfill(rows, place, job_id="j", columns=columns, rejects=str(tmp_path / "bad")).stored == 19


def test_a_history_whose_types_drift_inside_a_file_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """In an attempt history, a field has another type in a later row. The job fails, and the error names the field."""
    file = tmp_path / "attempts.jsonl"
    row = {"id": "a", "topic": "t", "attempt": 2, "due_ms": 1000, "started_ms": 1005, "outcome": "ok"}
    file.write_text(json.dumps(row) + "\n" + json.dumps(row | {"attempt": "two"}) + "\n", "utf-8")
    with pytest.raises(JobFailed, match="Cannot parse the field name 'attempt'"):
        slo(load_history(spark, str(file)))


def test_files_of_a_folder_that_disagree_are_refused(
    spark: SparkSession, store: DelayStore, place: StorePlace, tmp_path: Path
) -> None:
    """If two files give a column different types, opening them fails. If one file lacks a column, its rows have
    null there."""
    folder = tmp_path / "drift"
    rows_of(spark).write.parquet(str(folder / "one"))
    rows_of(spark).selectExpr("id", "cast(due_ms as string) due_ms", "topic", "value").write.parquet(
        str(folder / "two")
    )
    with pytest.raises(ConfigError, match="cannot be read"):
        load_table(spark, str(folder / "*"))
    rows_of(spark).drop("due_ms").selectExpr("concat(id, 'x') id", "topic", "value").write.parquet(
        str(folder / "three")
    )
    mixed = load_table(spark, str(folder / "[ot][nh]*"))
    with pytest.raises(Rejected, match="30 rows: there is no due"):
        backfill(mixed, place, job_id="j")
    assert nothing(store)


def test_a_page_that_is_damaged_inside_a_file_is_refused(
    spark: SparkSession, store: DelayStore, place: StorePlace, tmp_path: Path
) -> None:
    """A Parquet file has a damaged page and an intact footer, so it can be opened. A job that reads the page fails
    and stores nothing."""
    folder = tmp_path / "rows"
    rows_of(spark, 5_000).coalesce(1).write.option("compression", "gzip").parquet(str(folder))
    (file,) = folder.glob("*.parquet")
    data = bytearray(file.read_bytes())
    data[200:3_000] = os.urandom(2_800)
    file.write_bytes(data)
    for crc in folder.glob(".*.crc"):
        crc.unlink()
    with pytest.raises((JobFailed, ConfigError)):
        backfill(load_table(spark, str(folder)), place, job_id="j")
    assert nothing(store)


@pytest.fixture
def half(store: DelayStore, redis_client: redis.Redis) -> Iterator[Callable[[], str]]:
    """Return a function that returns an address of `store` for a user who may not access the last shard."""
    name = "half"

    def shut() -> str:
        rules = ["reset", "on", ">secret", "+@all", "~{wheel:0}:*", "~{wheel:1}:*"]
        redis_client.execute_command("ACL", "SETUSER", name, *rules)
        settings = redis_client.connection_pool.connection_kwargs
        if "path" in settings:
            return f"unix://{name}:secret@{settings['path']}"
        return f"redis://{name}:secret@{settings['host']}:{settings['port']}/0"

    yield shut
    redis_client.execute_command("ACL", "DELUSER", name)


def test_a_shard_that_cannot_be_reached_stops_everything(
    spark: SparkSession, store: DelayStore, place: StorePlace, half: Callable[[], str]
) -> None:
    """If one shard cannot be reached, a read, a backfill, a replay and an audit fail. None of them changes any
    shard."""
    store.schedule([Item(f"m{n}", DUE_MS + n, b"x") for n in range(30)])
    store.bury([(Item(f"d{n}", 5, b"x", "t"), "broken") for n in range(30)])
    before = store.counts().now
    shut = StorePlace(half(), "wheel", store.shards)
    options = {"store": shut.url}
    with pytest.raises((PySparkException, StoreError)):
        spark.read.format("wheelsched").options(**options).load().count()
    with pytest.raises(StoreError):
        backfill(rows_of(spark), shut, job_id="j")
    with pytest.raises(StoreError):
        replay(dead_letters(spark, place), shut)
    with pytest.raises(StoreError):
        audit(spark, shut, repair=True)
    assert store.counts().now == before


def test_a_namespace_of_another_version_is_refused(
    spark: SparkSession, store: DelayStore, place: StorePlace, redis_client: redis.Redis
) -> None:
    """Reads, writes and jobs refuse a store whose schema has another version, and change nothing."""
    for shard in range(store.shards):
        redis_client.hset(f"{{wheel:{shard}}}:meta", "schema", "99")
    with pytest.raises((PySparkException, StoreError), match="schema"):
        spark.read.format("wheelsched").option("store", place.url).load().count()
    with pytest.raises((PySparkException, StoreError), match="schema"):
        rows_of(spark).write.format("wheelsched").mode("append").option("store", place.url).save()
    with pytest.raises(NamespaceMismatch):
        backfill(rows_of(spark), place, job_id="j")
    with pytest.raises(NamespaceMismatch):
        audit(spark, place)
    with pytest.raises((NamespaceMismatch, PySparkException)):
        triage(dead_letters(spark, place)).collect()
    assert not any(redis_client.exists(f"{{wheel:{shard}}}:body") for shard in range(store.shards))


def test_a_store_without_a_history_says_so(spark: SparkSession, place: StorePlace) -> None:
    """A store without an attempt history is an error, because an empty report would look like a good result."""
    with pytest.raises(ConfigError, match="there is no attempt history"):
        store_history(spark, place)


def test_unreadable_rows_of_the_attempt_history_are_counted(
    spark: SparkSession, store: DelayStore, place: StorePlace
) -> None:
    """`slo` and `backtest` leave out unreadable rows of the store's attempt history, and count them."""
    from retry_topic.history import Attempt

    entries = [Attempt(f"m{n}", "t", 2, 1_000, 1_004, "ok", None, 0) for n in range(10)]
    History(store).append([(row.id, row.encode()) for row in entries] + [("a", b"nonsense"), ("b", b"[9]")], keep=1_000)
    history = store_history(spark, place)
    found = slo(history)
    assert (found.deliveries, found.left_out, found.lateness_ms["max"]) == (10, 2, 4)
    assert backtest(history).left_out == 2

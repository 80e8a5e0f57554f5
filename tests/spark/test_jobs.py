"""The jobs over a store: backfill, dead letters, capacity."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from retry_topic.message import Message
from retry_topic.message.encoding import decode_body, encode_body
from retry_topic.message.headers import RetryState, read, write
from retry_topic.spark.jobs import backfill, capacity, dead_letters, replay, triage
from retry_topic.spark.jobs.capacity import simulate, waiting
from retry_topic.spark.jobs.dlq import select
from retry_topic.spark.jobs.store import place_of
from retry_topic.spark.source.options import StorePlace
from wheel_sched.errors import ConfigError, Rejected
from wheel_sched.store import AttemptCounts, DelayStore, Item
from wheel_sched.wheel import TimingWheel

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

DUE_MS = 4_000_000_000_000


@pytest.fixture
def place(redis_url: str, store: DelayStore) -> StorePlace:
    return place_of(redis_url)


def customers(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(count).selectExpr("id customer", f"{DUE_MS}L + id * 10 remind_at", "concat('n', id) name")


COLUMNS = {
    "id": "concat('c', customer)",
    "due_ms": "remind_at",
    "topic": "'reminders'",
    "value": "to_json(struct(name))",
}


def test_a_backfill_is_finished_by_running_it_again(spark: SparkSession, store: DelayStore, place: StorePlace) -> None:
    """A dry run stores nothing, a run stores all rows, and a second run with the same job id stores none.

    The columns of the messages are SQL expressions over the columns of the table.
    """
    rows = customers(spark, 1000)
    tried = backfill(rows, place, job_id="r-1", columns=COLUMNS, dry_run=True)
    assert (tried.rows, tried.bad, tried.stored, store.counts().total("due")) == (1000, {}, 0, 0)
    assert (tried.first_due_ms, tried.last_due_ms) == (DUE_MS, DUE_MS + 9_990)
    assert backfill(rows, place, job_id="r-1", columns=COLUMNS).stored == 1000
    assert backfill(rows, place, job_id="r-1", columns=COLUMNS).stored == 0
    (found,) = store.get(["c3"])
    assert found is not None
    assert (found.score_ms, decode_body(found.body).value) == (DUE_MS + 30, b'{"name":"n3"}')


def test_a_spread_moves_each_due_by_its_own_and_the_same_amount(
    spark: SparkSession, store: DelayStore, place: StorePlace
) -> None:
    """`spread_ms` delays each due time by less than that time. The delay depends only on the id, so every run gives the
    same.

    With `rate` instead, on average that many messages per second become due.
    """
    columns = COLUMNS | {"due_ms": f"{DUE_MS}L"}
    backfill(customers(spark, 500), place, job_id="r-1", columns=columns, spread_ms=60_000)
    dues = {f.id: f.score_ms - DUE_MS for f in store.list_items("due", limit=500).found}
    assert len(dues) == 500
    assert all(0 <= due < 60_000 for due in dues.values())
    assert len(set(dues.values())) > 400
    store.cancel(sorted(dues))
    backfill(customers(spark, 500), place, job_id="r-2", columns=columns, spread_ms=60_000)
    assert {f.id: f.score_ms - DUE_MS for f in store.list_items("due", limit=500).found} == dues
    store.cancel(sorted(dues))
    backfill(customers(spark, 500), place, job_id="r-3", columns=columns, rate=100)
    paced = [f.score_ms - DUE_MS for f in store.list_items("due", limit=500).found]
    assert len(paced) == 500
    assert 4_000 < max(paced) < 5_000  # 500 rows at 100 a second take five seconds
    for wrong in ({"rate": 5, "spread_ms": 5}, {"rate": 0}, {"rate": 5, "columns": columns | {"due_ms": "null"}}):
        with pytest.raises((ConfigError, Rejected)):
            backfill(customers(spark, 5), place, **({"job_id": "r-4", "columns": columns} | wrong))


def test_rows_that_cannot_be_stored_stop_a_backfill_or_go_to_the_rejects(
    spark: SparkSession, store: DelayStore, place: StorePlace, tmp_path: Path
) -> None:
    """Without a folder `rejects`, bad rows stop the job before it stores anything. With this folder, the job writes
    them there and stores the other rows."""
    bad: list[tuple[Any, ...]] = [
        ("a", DUE_MS, "t", "x"),
        (None, DUE_MS, "t", "x"),
        ("b", None, "t", "x"),
        ("c", -5, "t", "x"),
        ("d", DUE_MS, "t", None),
        ("e", DUE_MS, "", "x"),
        ("f", DUE_MS, "t", "x"),
        ("f", DUE_MS + 1, "t", "y"),
        ("i" * 600, DUE_MS, "t", "x"),
    ]
    rows = spark.createDataFrame(bad, "id string, due_ms long, topic string, value string")
    with pytest.raises(Rejected, match="nothing was stored"):
        backfill(rows, place, job_id="bad")
    assert not any(store.counts().now.values())
    folder = tmp_path / "rejects"
    done = backfill(rows, place, job_id="bad", rejects=str(folder))
    assert done.bad == {
        "there is no id": 1,
        "there is no due time": 1,
        "the due time is not between 1970 and 9999": 1,
        "there is no value": 1,
        "there is no topic": 1,
        "the id has over 512 bytes": 1,
        "the id is not unique": 1,
    }
    assert done.stored == 2
    assert [found is not None for found in store.get(["a", "f"])] == [True, True]
    assert spark.read.parquet(str(folder)).count() == 6


@pytest.mark.parametrize(
    "expression", ["uuid()", "row_number() over (order by customer)", "monotonically_increasing_id()", "rand() * 5"]
)
def test_an_id_that_changes_from_run_to_run_is_refused(spark: SparkSession, place: StorePlace, expression: str) -> None:
    """An id expression whose value changes from run to run is an error, because a second run would store every row
    again."""
    with pytest.raises(ConfigError, match="would change in the next run"):
        backfill(customers(spark, 5), place, job_id="j", columns=COLUMNS | {"id": expression})


def test_a_backfill_that_does_not_fit_is_refused(spark: SparkSession, store: DelayStore, place: StorePlace) -> None:
    """If the job estimates that the rows need more memory than `memory_limit`, it fails before it stores anything."""
    with pytest.raises(Rejected, match="more memory"):
        backfill(customers(spark, 500), place, job_id="j", columns=COLUMNS, memory_limit=10_000)
    assert not any(store.counts().now.values())


def test_wrong_expressions_are_refused(spark: SparkSession, place: StorePlace) -> None:
    """A wrong SQL expression and an unknown column are errors."""
    with pytest.raises(ConfigError, match="an expression is wrong"):
        backfill(customers(spark, 5), place, job_id="j", columns=COLUMNS | {"id": "concat('x', nobody)"})
    with pytest.raises(ConfigError, match="there is no column colour"):
        backfill(customers(spark, 5), place, job_id="j", columns=COLUMNS | {"colour": "1"})


@pytest.fixture
def bury(store: DelayStore) -> Callable[[int], None]:
    """Return a function that makes `count` dead letters, with two errors in two topics."""

    def put(count: int) -> None:
        graves = []
        for n in range(count):
            state = RetryState(
                id=f"root{n}",
                attempt=8,
                original_topic="orders" if n % 4 else "mail",
                error_class="shop.Timeout" if n % 3 else "shop.BadCurrency",
                error_message=f"no answer after {n} ms" if n % 3 else "EURO is no currency",
                error_fingerprint="aaaa00000000" if n % 3 else "bbbb00000000",
                first_failed_ms=1_000,
                last_failed_ms=2_000 + n,
                error_status=503,
            )
            payload = json.dumps({"n": n, "currency": "EURO"}).encode()
            message = Message("billing.redelivery", payload, b"k", write((("trace", b"t"),), state))
            graves.append((Item(f"root{n}.8", 10_000 + n, encode_body(message), "orders"), "max-attempts: 8"))
        store.bury(graves)

    return put


def test_dead_letters_are_sorted_by_what_broke_them(
    spark: SparkSession, store: DelayStore, place: StorePlace, bury: Callable[[int], None]
) -> None:
    """`triage` groups dead letters by topic and error. Each group has its size, its first and last time, and a sample.

    If the letters have no fingerprints, the groups are the same.
    """
    bury(120)
    store.bury([(Item("odd", 9_000, b"no message", "mail"), "unreadable")])
    letters = dead_letters(spark, place)
    groups = [tuple(row)[:4] for row in triage(letters).collect()]
    assert groups == [
        ("orders", "shop.Timeout", "aaaa00000000", 60),
        ("orders", "shop.BadCurrency", "bbbb00000000", 30),
        ("mail", "shop.Timeout", "aaaa00000000", 20),
        ("mail", "shop.BadCurrency", "bbbb00000000", 10),
        ("mail", None, None, 1),
    ]
    first = triage(letters).first()
    assert first is not None
    assert (first["first_ms"], first["last_ms"], first["sample_id"]) == (10_001, 10_119, "root119.8")
    archive = letters.where("error_class is not null").drop("fingerprint")
    sizes = [row["letters"] for row in triage(archive).collect()]
    assert sizes == [60, 30, 20, 10]  # numbers in the message do not split a group


def test_a_selection_is_repaired_and_replayed_once(
    spark: SparkSession, store: DelayStore, place: StorePlace, bury: Callable[[int], None]
) -> None:
    """A dry run changes nothing. A replay changes payloads by the SQL expression `repair` and resets attempt counts.

    A second replay of the same letters does nothing.
    """
    bury(120)
    chosen = select(dead_letters(spark, place), where="attempt >= 8 and status = 503", group="bbbb")
    repair = "replace(text, 'EURO', 'EUR')"
    tried = replay(chosen, place, repair=repair, rate=10, dry_run=True)
    assert (tried.selected, tried.replayed, store.counts().total("dead")) == (40, 40, 120)
    assert len(tried.samples) == 5
    assert all('"EUR"' in sample["repaired"] for sample in tried.samples)
    now_ms = store.now_ms()
    done = replay(chosen, place, repair=repair, rate=10)
    assert (done.selected, done.replayed, done.guarded, done.gone) == (40, 40, 0, 0)
    waiting_now = store.list_items("due", limit=500).found
    assert sorted(found.id for found in waiting_now) == sorted(f"root{n}.8" for n in range(0, 120, 3))
    message = decode_body(waiting_now[0].body)
    state = read(message.headers)
    assert json.loads(message.value)["currency"] == "EUR"
    assert (state.attempt, state.replays, message.key, message.header("trace")) == (0, 1, b"k", b"t")
    spread_ms = [found.score_ms - now_ms for found in waiting_now]
    assert min(spread_ms) >= 0
    assert max(spread_ms) > 1_000  # 40 letters at 10 a second take four seconds
    again = replay(chosen, place, repair=repair, rate=10)
    assert (again.selected, again.replayed, store.counts().total("dead")) == (0, 0, 80)


def test_the_loop_guard_holds_for_bulk_replays_too(
    spark: SparkSession, store: DelayStore, place: StorePlace, bury: Callable[[int], None]
) -> None:
    """A dead letter that was already replayed as often as allowed is counted and not replayed."""
    bury(6)
    AttemptCounts(store).raise_to([("root0!", 3, 4_000_000_000_000)])
    done = replay(dead_letters(spark, place), place)
    assert (done.selected, done.replayed, done.guarded) == (6, 5, 1)
    assert store.get(["root0.8"])[0] is not None
    assert store.counts().total("dead") == 1


def test_a_wrong_predicate_or_repair_is_refused(spark: SparkSession, place: StorePlace) -> None:
    """A wrong predicate, repair or rate raises an error before a letter is replayed.

    A predicate selects letters, and a repair changes their payloads. Both are SQL expressions.
    """
    letters = dead_letters(spark, place)
    with pytest.raises(ConfigError, match="the predicate is wrong"):
        select(letters, where="colour = 'red'")
    with pytest.raises(ConfigError, match="the repair is wrong"):
        replay(letters, place, repair="replace(nothing, 'a', 'b')")
    with pytest.raises(ConfigError, match="expected rate"):
        replay(letters, place, rate=0)


def test_capacity_is_what_the_wheel_itself_counts(spark: SparkSession, store: DelayStore, place: StorePlace) -> None:
    """`capacity` predicts counters of the timing wheel for several ticks and sizes. Wheels that really run count the
    same.

    The peak of due messages per second and the memory are exact.
    """
    pairs = [(n, n + 10 + (n * 7919) % 5_000) for n in range(2_000)]
    rows: Any = spark.createDataFrame([(f"m{c}", c, d) for c, d in pairs], "id string, created_ms long, due_ms long")
    found = capacity(rows, shards=3, sample=2_000, body_bytes=100)
    assert (found.messages, found.sampled, len(found.candidates)) == (2_000, 2_000, 12)
    assert found.memory_bytes == 2_000 * 300
    seconds: dict[int, int] = {}
    for _, due_ms in pairs:
        seconds[due_ms // 1000] = seconds.get(due_ms // 1000, 0) + 1
    assert found.peak_due_per_s == max(seconds.values())
    for candidate in found.candidates:
        assert candidate == simulate(candidate.tick_ms, candidate.wheel_size, pairs)
    wheel: TimingWheel[None] = TimingWheel(0, tick_ms=1, wheel_size=64)
    handed_out = 0
    for created_ms, due_ms in pairs:
        handed_out += len(wheel.advance(created_ms))
        wheel.schedule(None, due_ms)
    handed_out += len(wheel.advance(100_000))
    assert handed_out == 2_000
    ours = next(c for c in found.candidates if (c.tick_ms, c.wheel_size) == (1, 64))
    assert ours.cascades == wheel.counters.cascades
    ticks: Counter[int] = Counter(due_ms for _, due_ms in pairs)
    assert ours.fullest == max(ticks.values())
    assert found.suggested["tick_ms"] == 1


def test_capacity_reads_what_waits_now(spark: SparkSession, store: DelayStore, place: StorePlace) -> None:
    """`capacity` can read the waiting messages of a store, as if all were created now. For an empty store it counts
    none."""
    assert capacity(waiting(spark, place)).messages == 0
    store.schedule([Item(f"m{n}", DUE_MS + n, b"") for n in range(300)])
    found = capacity(waiting(spark, place), shards=place.shards, sample=300)
    assert (found.messages, found.peak_due_per_s) == (300, 300)
    assert 1.0 <= found.shard_skew < 1.5

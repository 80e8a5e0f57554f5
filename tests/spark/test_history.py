"""`slo` and `backtest` on attempt histories: small ones that are counted by hand, generated ones, and bad ones."""

from __future__ import annotations

import math
import random
import xml.etree.ElementTree as ET  # parses only a page that the test has made
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from retry_topic.policy import Exponential, load_policies
from retry_topic.policy.dumping import dump_policies
from retry_topic.spark.jobs import backtest, slo
from retry_topic.spark.jobs.curves import GRID_MS, LEAST_MS, STEPS, Interval, fit, schedules
from retry_topic.spark.jobs.history import load_history
from retry_topic.spark.jobs.page import page
from wheel_sched.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

COLUMNS = "id string, topic string, attempt int, due_ms long, started_ms long, outcome string, error_class string"
T0 = 1_700_000_000_000
RECOVERS, MEAN_MS = 0.85, 30_000


def attempts(
    rng: random.Random, topic: str, error: str, count: int, recovery_ms: Callable[[], float] | None = None
) -> list[tuple[Any, ...]]:
    """The attempts of messages, with exponential backoff and full jitter.

    Args:
        rng: the source of randomness.
        topic: the topic of the messages.
        error: the class of their errors.
        count: the number of messages.
        recovery_ms: draws the time after which a message succeeds. Defaults to an exponential distribution, in which
            some messages never succeed.
    """
    delay = Exponential(2_000, 2, 60_000)
    rows: list[tuple[Any, ...]] = []

    def exponential() -> float:
        return rng.expovariate(1 / MEAN_MS) if rng.random() < RECOVERS else math.inf

    for n in range(count):
        recovery = (recovery_ms or exponential)()
        first = at = T0 + n * 100
        due: int | None = None
        for attempt in range(1, 9):
            ok = attempt > 1 and at - first >= recovery
            outcome = "ok" if ok else "dead" if attempt == 8 else "failed"
            rows.append((f"{topic}{n}", topic, attempt, due, at, outcome, None if ok else error))
            if ok:
                break
            due = at + delay.draw(attempt, None, rng).delay_ms
            at = due + 3
    return rows


def still_failing(at_ms: float) -> float:
    return 1 - RECOVERS * (1 - math.exp(-at_ms / MEAN_MS))


@pytest.fixture(scope="module")
def history(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    rng = random.Random(7)
    rows = attempts(rng, "orders", "shop.Timeout", 3_000) + attempts(rng, "mail", "smtplib.Down", 1_000)
    rows += attempts(rng, "rare", "shop.Odd", 5)
    rows += [(None, "orders", 1, None, T0, "failed", "x.Y"), ("z", "orders", 0, None, T0, "odd", None)]
    path = str(tmp_path_factory.mktemp("history") / "attempts.parquet")
    frame: Any = spark.createDataFrame(rows, COLUMNS)
    frame.write.parquet(path)
    return path


def lines(rows: list[tuple[Any, ...]]) -> list[Interval]:
    """The intervals in which messages recovered, computed in plain Python. The job `backtest` uses Spark for this."""

    def nearest(at_ms: float) -> int:
        if at_ms < LEAST_MS // 2:
            return 0
        return min(len(GRID_MS) - 1, max(1, round(math.log2(max(at_ms, 1) / LEAST_MS) * STEPS) + 1))

    messages: dict[str, list[tuple[Any, ...]]] = {}
    for row in rows:
        messages.setdefault(row[0], []).append(row)
    cells: Counter[tuple[int, int | None]] = Counter()
    for own in messages.values():
        failed = [row[4] for row in own if row[5] != "ok"]
        went = [row[4] for row in own if row[5] == "ok"]
        low = nearest(failed[-1] - failed[0])
        cells[low, max(nearest(went[0] - failed[0]), low + 1) if went else None] += 1
    return [Interval(low, high, count) for (low, high), count in sorted(cells.items(), key=str)]


# Weibull distributions of the time after which a message succeeds: share that ever succeeds, scale in ms, shape.
LAWS: dict[str, tuple[float, float, float]] = {
    "even": (0.85, 30_000, 1.0),
    "quick": (0.95, 4_000, 1.0),
    "dragging": (0.7, 40_000, 0.6),
}


def by_law(name: str, topic: str, seed: int, count: int) -> list[tuple[Any, ...]]:
    """Like `attempts`, but the times after which messages succeed have the distribution LAWS[`name`]."""
    recovers, scale_ms, shape = LAWS[name]
    rng = random.Random(seed)

    def recovery() -> float:
        if rng.random() >= recovers:
            return math.inf
        return float(scale_ms * (-math.log(1 - rng.random())) ** (1 / shape))

    return attempts(rng, topic, f"law.{name}", count, recovery)


def truth(name: str, times_ms: Any) -> tuple[float, float]:
    """The true share of successes, and the true mean number of tries, if messages are retried at `times_ms`.

    Args:
        name: the distribution, in `LAWS`, of the time after which a message succeeds.
        times_ms: a schedule in each row: the times of the retries after the first failure, in ms.
    """
    recovers, scale_ms, shape = LAWS[name]
    failing = 1 - recovers * (1 - np.exp(-((times_ms / scale_ms) ** shape)))
    return float(1 - failing[:, -1].mean()), float(2 + failing[:, :-1].sum(axis=1).mean())


def test_the_truth_lies_within_the_stated_interval(spark: SparkSession, tmp_path: Path) -> None:
    """`backtest` states an interval for the share of successes and for the tries of each policy that it proposes. The
    true values lie within the intervals, for twenty histories whose seeds were not used to develop the method."""
    laws = {f"t{seed}": list(LAWS)[seed % 3] for seed in range(71_000, 71_020)}
    rows = [row for seed in range(71_000, 71_020) for row in by_law(laws[f"t{seed}"], f"t{seed}", seed, 1_000)]
    names = [part.split()[0] for part in COLUMNS.split(", ")]
    file = tmp_path / "attempts.parquet"
    parquet.write_table(pa.table(dict(zip(names, zip(*rows, strict=True), strict=True))), file)
    found = backtest(load_history(spark, str(file)))
    assert len(found.verdicts) == 20
    missed = []
    for verdict in found.verdicts:
        policy = verdict.policy
        delay = Exponential(policy["base_ms"], policy["factor"], policy["cap_ms"], policy["jitter"])
        true = truth(laws[verdict.topic], schedules(delay, policy["max_attempts"]))
        for what, value in zip(("success", "tries"), true, strict=True):
            low, high = verdict.interval[what]
            if not low <= value <= high:
                missed.append((verdict.topic, what, low, value, high))
    assert missed == []
    widths = [verdict.interval["success"][1] - verdict.interval["success"][0] for verdict in found.verdicts]
    assert sum(widths) / 20 < 0.15  # an interval that is wide enough would always contain the truth


def test_a_curve_follows_the_distribution_behind_the_history() -> None:
    """The estimated share of messages that still fail is less than 3 percentage points off the true share."""
    curve = fit(lines(attempts(random.Random(3), "t", "e", 6_000)))
    for at_ms in (2_000, 5_000, 10_000, 30_000, 60_000, 120_000):
        assert abs(float(curve.at(at_ms)) - still_failing(at_ms)) < 0.03, at_ms


def test_a_backtest_proposes_fewer_tries_for_the_same_success(spark: SparkSession, history: str) -> None:
    """`backtest` reports today's policy as the history shows it. The policy that it proposes needs fewer tries for
    about the same share of successes, and its policy file can be loaded."""
    found = backtest(load_history(spark, history), resamples=20)
    assert (found.left_out, found.small_groups, found.messages) == (2, 1, 4_005)
    assert [(v.topic, v.error_class, v.messages) for v in found.verdicts] == [
        ("orders", "shop.Timeout", 3_000),
        ("mail", "smtplib.Down", 1_000),
    ]
    orders = found.verdicts[0]
    went = sum(row[5] == "ok" for row in attempts(random.Random(7), "orders", "shop.Timeout", 3_000))
    assert orders.today["success"] == pytest.approx(went / 3_000, abs=1e-5)
    assert orders.proposed["success"] >= orders.today["success"] - 0.006
    assert orders.proposed["tries"] < orders.today["tries"] - 1
    assert orders.load["today"] == len(attempts(random.Random(7), "orders", "shop.Timeout", 3_000))
    assert orders.load["ratio"] == pytest.approx(orders.proposed["tries"] / orders.today["tries"], abs=1e-3)
    low, high = orders.interval["success"]
    assert low <= orders.proposed["success"] <= high
    policies = load_policies(dump_policies(found.policies))
    rule = policies.for_topic("orders").rules[0]
    assert rule.errors == ("shop.Timeout",)
    assert isinstance(rule.delay, Exponential)
    assert (rule.delay.base_ms, rule.max_attempts) == (orders.policy["base_ms"], orders.policy["max_attempts"])
    assert policies.for_topic("orders").version == 2


def test_lateness_is_counted_exactly(spark: SparkSession) -> None:
    """For a history counted by hand, `slo` reports the right percentiles, late deliveries, worst minutes and error
    budget."""
    rows: list[tuple[Any, ...]] = []
    for n in range(1_000):
        late_ms = 2_000 if n in (7, 8, 500) else n % 10
        due = T0 + n * 1_000
        rows.append((f"m{n}", "a" if n < 600 else "b", 2, due, due + late_ms, "ok", None, n % 2))
    rows.append(("first", "a", 1, None, T0, "failed", "x.Y", 0))
    frame: Any = spark.createDataFrame(rows, COLUMNS + ", shard int")
    found = slo(frame, target_ms=1_000, objective=0.99)
    assert (found.deliveries, found.late, found.early, found.burn, found.met) == (1_000, 3, 0, 0.3, True)
    assert found.lateness_ms == {"p50": 5, "p90": 9, "p99": 9, "p999": 2_000, "max": 2_000}
    assert [(row["topic"], row["deliveries"], row["late"]) for row in found.topics] == [("a", 600, 3), ("b", 400, 0)]
    assert [(row["shard"], row["deliveries"], row["late"]) for row in found.shards] == [(0, 500, 2), (1, 500, 1)]
    assert sum(row["deliveries"] for row in found.hours) == 1_000
    assert [row["late"] for row in found.worst] == [2, 1]
    strict = slo(frame, target_ms=1_000, objective=0.999)
    assert (strict.burn, strict.met) == (3.0, False)
    text = page(found, "Lateness <of> orders")
    assert "Lateness &lt;of&gt; orders" in text
    body = text.partition("</style>")[2].removesuffix("</html>\n")
    tree = ET.fromstring(body)  # noqa: S314  # made here
    assert len([*tree.iter("polyline")]) == 3
    assert "http" not in text.replace("<html", "")


def test_an_early_delivery_misses_every_objective(spark: SparkSession) -> None:
    """One early delivery misses the objective, because it is a defect that no error budget allows."""
    frame: Any = spark.createDataFrame([("m", "t", 2, T0, T0 - 1, "ok", None)], COLUMNS)
    found = slo(frame)
    assert (found.early, found.late, found.met) == (1, 0, False)


def test_an_empty_history_says_so(spark: SparkSession) -> None:
    """For an empty history the reports are empty, and no error is raised."""
    frame: DataFrame = spark.createDataFrame([], COLUMNS)
    assert slo(frame).deliveries == 0
    assert backtest(frame).verdicts == []


def test_a_history_with_other_columns_is_refused(spark: SparkSession) -> None:
    """One error lists missing columns and wrong types."""
    frame: Any = spark.createDataFrame([("m", "t", "two")], "id string, topic string, attempt string")
    with pytest.raises(ConfigError) as refused:
        backtest(frame)
    text = str(refused.value)
    assert "expected column attempt to be int, got: string" in text
    assert "expected a column started_ms bigint, got none" in text


@pytest.mark.parametrize("damage", ["truncated", "no parquet"])
def test_a_corrupt_file_is_refused(spark: SparkSession, history: str, tmp_path: Path, damage: str) -> None:
    """A truncated file, another kind of file and a missing file are errors that name the file."""
    whole = next(Path(history).glob("*.parquet")).read_bytes()
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(whole[: len(whole) // 2] if damage == "truncated" else b"hello")
    with pytest.raises(ConfigError, match=r"broken\.parquet cannot be read"):
        load_history(spark, str(broken))
    with pytest.raises(ConfigError, match="there is no file or folder"):
        load_history(spark, str(tmp_path / "absent.parquet"))


def test_json_lines_are_read_as_they_are_described(spark: SparkSession, tmp_path: Path) -> None:
    """The columns of JSON Lines get the documented types, and impossible rows are counted."""
    file = tmp_path / "attempts.jsonl"
    file.write_text(
        '{"id": "a", "topic": "t", "attempt": 2, "due_ms": 1000, "started_ms": 1005, "outcome": "ok"}\n'
        '{"id": "b", "topic": "t", "attempt": 2, "due_ms": 1000, "started_ms": 1005, "outcome": "perhaps"}\n',
        "utf-8",
    )
    found = slo(load_history(spark, str(file)))
    assert (found.deliveries, found.left_out, found.lateness_ms["max"]) == (1, 1, 5)

"""backtest: what other retry policies would have done, from the history of attempts, and a policy file that does it.

Spark reduces the history to intervals (`curves`) for each topic and error class, some tens of kilobytes; what follows
is arithmetic on the driver. The first failure of a message decides its error class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from retry_topic.policy import PolicySet, RetryPolicy
from retry_topic.policy.checks import check_name, check_pattern
from retry_topic.policy.failure import Failure
from retry_topic.policy.rules import Rule, first_match
from retry_topic.spark.faults import plain_errors
from retry_topic.spark.jobs.curves import (
    GRID_MS,
    LEAST_MS,
    STEPS,
    Curve,
    Interval,
    Score,
    fit,
    interval,
    resample,
    schedules,
    score,
)
from retry_topic.spark.jobs.history import check_history, sound
from retry_topic.spark.jobs.search import Candidate, search
from wheel_sched.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

LEAST_MESSAGES = 30  # a group of fewer says nothing


@dataclass(slots=True)
class Verdict:
    """One topic and error class.

    Args:
        topic: of the messages.
        error_class: of their first failure.
        messages: that failed at least once.
        today: what happened: success, tries a message, wait p50, p90, p99.
        present: what today's policy would do by the curve; beside `today` it shows how well the curve fits.
        proposed: what the proposal would do.
        load: deliveries that the dependency gets of these messages, today and by the proposal, and the one divided by
            the other.
        interval: where the proposal's true success and tries are, at a level of 95 % at least, see `curves.interval`.
        policy: the proposal in words.
    """

    topic: str
    error_class: str
    messages: int
    today: dict[str, Any]
    present: dict[str, Any]
    proposed: dict[str, Any]
    load: dict[str, float]
    interval: dict[str, tuple[float, float]]
    policy: dict[str, Any]


@dataclass(slots=True)
class Backtest:
    """What was found; `policies` is the proposal, for `dump_policies`."""

    attempts: int = 0
    left_out: int = 0
    messages: int = 0
    inconsistent: int = 0
    small_groups: int = 0
    verdicts: list[Verdict] = field(default_factory=list)
    policies: PolicySet = field(default_factory=PolicySet)

    def as_dict(self) -> dict[str, Any]:
        names = ("attempts", "left_out", "messages", "inconsistent", "small_groups")
        return {name: getattr(self, name) for name in names} | {"groups": [asdict(v) for v in self.verdicts]}


@plain_errors
def backtest(
    history: DataFrame,
    policies: PolicySet | None = None,
    *,
    groups: int = 50,
    resamples: int = 60,
    seed: int = 0,
) -> Backtest:
    """Score today's policies and better ones on a history.

    Args:
        history: see `history`.
        policies: today's. Defaults to the built-in one.
        groups: how many pairs of topic and error class, the largest first. Defaults to 50.
        resamples: for the intervals. Defaults to 60.
        seed: of the search and the resampling. Defaults to 0.

    Raises:
        ConfigError: an argument is wrong, or a column is missing.
    """
    if groups < 1 or resamples < 2:
        raise ConfigError(
            f"expected groups to be at least 1 and resamples at least 2, got: {groups!r} and {resamples!r}"
        )
    today = policies or PolicySet()
    checked = check_history(history)
    report = Backtest()
    cells, sums = _reduce(checked, report)
    ranked = sorted(sums, key=lambda key: -sums[key]["messages"])
    chosen = [key for key in ranked if sums[key]["messages"] >= LEAST_MESSAGES][:groups]
    report.small_groups = len(sums) - len(chosen)
    found: dict[tuple[str, str], Candidate] = {}
    for key in chosen:
        topic, error_class = key
        curve = fit(cells[key])
        had = sums[key]
        happened = {
            "success": round(had["succeeded"] / had["messages"], 5),
            "tries": round(had["tries"] / had["messages"], 3),
            "wait_ms": dict(zip(("p50", "p90", "p99"), had["waits"] or (0, 0, 0), strict=True)),
        }
        wait_p90_ms = happened["wait_ms"]["p90"]
        best = search(curve, success=happened["success"], wait_p90_ms=wait_p90_ms, seed=seed)
        found[key] = best
        others = resample(cells[key], resamples, seed)
        report.verdicts.append(
            Verdict(
                topic,
                error_class,
                had["messages"],
                happened,
                score(curve, _todays(today, topic, error_class, seed)).as_dict(),
                best.score.as_dict(),
                _load(had["tries"], best.score.tries * had["messages"]),
                intervals_of(best, others, seed),
                _words(best),
            )
        )
    report.policies = _proposal(today, found)
    return report


def intervals_of(best: Candidate, others: Sequence[Curve], seed: int) -> dict[str, tuple[float, float]]:
    """The intervals of a proposal's success and tries, from curves of messages drawn anew."""
    times = schedules(best.delay, best.attempts, seed)
    found: list[Score] = [score(other, times) for other in others]
    return {
        "success": interval(best.score.success, (one.success for one in found), 0.0, 1.0),
        "tries": interval(best.score.tries, (one.tries for one in found), 1.0, float(best.attempts)),
    }


def _reduce(history: DataFrame, report: Backtest) -> tuple[dict[Any, list[Interval]], dict[Any, dict[str, Any]]]:
    """Intervals and sums by (topic, error class)."""
    from pyspark.sql import functions as f

    fine = sound(history)
    counted = history.agg(f.count("*").alias("all"), f.sum(f.when(fine, 0).otherwise(1)).alias("bad")).first()
    if counted is not None:
        report.attempts, report.left_out = counted["all"], counted["bad"] or 0
    failed, went = f.col("outcome") != "ok", f.col("outcome") == "ok"
    started, klass = f.col("started_ms"), f.coalesce(f.col("error_class"), f.lit(""))
    messages = (
        history.where(fine)
        .groupBy("topic", "id")
        .agg(
            f.min(f.when(failed, started)).alias("first"),
            f.max(f.when(failed, started)).alias("failed"),
            f.min(f.when(went, started)).alias("went"),
            f.min_by(klass, f.when(failed, f.col("attempt"))).alias("error_class"),
            f.count("*").alias("tries"),
        )
        .where(f.col("first").isNotNull())
    )
    wait, until = f.col("went") - f.col("first"), f.col("failed") - f.col("first")
    binned = messages.withColumns(
        {
            "low": _nearest_line(until),
            "high": f.when(f.col("went").isNotNull(), _nearest_line(wait)),
            "wait": wait,
        }
    )
    consistent = f.col("went").isNull() | (f.col("went") > f.col("failed"))
    report.inconsistent = binned.where(~consistent).count()
    kept = binned.where(consistent)
    sums: dict[Any, dict[str, Any]] = {}
    for row in (
        kept.groupBy("topic", "error_class")
        .agg(
            f.count("*").alias("messages"),
            f.sum(f.when(f.col("went").isNotNull(), 1).otherwise(0)).alias("succeeded"),
            f.sum("tries").alias("tries"),
            f.percentile_approx("wait", [0.5, 0.9, 0.99], 10_000).alias("waits"),
        )
        .collect()
    ):
        sums[row["topic"], row["error_class"]] = row.asDict()
    cells: dict[Any, list[Interval]] = {}
    for row in kept.groupBy("topic", "error_class", "low", "high").count().collect():
        # a success between two lines of the grid: at least one stretch wide
        high = None if row["high"] is None else max(row["high"], row["low"] + 1)
        cells.setdefault((row["topic"], row["error_class"]), []).append(Interval(row["low"], high, row["count"]))
    report.messages = sum(had["messages"] for had in sums.values())
    for intervals in cells.values():
        intervals.sort(key=lambda interval: (interval.failed, interval.recovered or len(GRID_MS)))
    return cells, sums


def _nearest_line(at_ms: Column) -> Column:
    """Number of the grid line nearest to a time."""
    from pyspark.sql import functions as f

    line = f.round(f.log2(f.greatest(at_ms, f.lit(1)) / f.lit(LEAST_MS)) * STEPS) + 1
    bounded = f.least(f.lit(len(GRID_MS) - 1), f.greatest(f.lit(1), line))
    return f.when(at_ms < LEAST_MS // 2, f.lit(0)).otherwise(bounded).cast("int")


def _todays(policies: PolicySet, topic: str, error_class: str, seed: int) -> Any:
    """The schedules of the policy in force."""
    policy = policies.for_topic(topic)
    match = first_match(policy.rules, Failure(error_class=error_class)) if error_class else None
    rule = match.rule if match else None
    attempts = (rule.max_attempts if rule else None) or policy.max_attempts or 100
    if rule is not None and rule.dead:
        attempts = 1
    times = schedules((rule.delay if rule else None) or policy.delay, min(attempts, 1_000), seed)
    age_ms = (rule.max_age_ms if rule else None) or policy.max_age_ms
    return times if age_ms is None else times[:, times.mean(axis=0) <= age_ms]


def _load(today: int, proposed: float) -> dict[str, float]:
    return {"today": today, "proposed": round(proposed), "ratio": round(proposed / today, 3)}


def _words(best: Candidate) -> dict[str, Any]:
    delay = best.delay
    return {
        "kind": "exponential",
        "base_ms": delay.base_ms,
        "factor": delay.factor,
        "cap_ms": delay.cap_ms,
        "jitter": delay.jitter,
        "max_attempts": best.attempts,
    }


def _proposal(today: PolicySet, found: dict[tuple[str, str], Candidate]) -> PolicySet:
    """Today's policies with a rule in front for each error class that was searched."""
    topics = dict(today.topics)
    for topic in dict.fromkeys(topic for topic, _ in found):
        if check_name("topic", topic):
            continue
        base = today.for_topic(topic)
        rules = [
            Rule(errors=(error,), name=f"backtest {error}"[:60], delay=best.delay, max_attempts=best.attempts)
            for (place, error), best in found.items()
            if place == topic and "." in error and not check_pattern("error", error)
        ]
        topics[topic] = _with_rules(base, topic if topic not in today.topics else base.name, rules)
    return PolicySet(today.default, topics)


def _with_rules(base: RetryPolicy, name: str, rules: Sequence[Rule]) -> RetryPolicy:
    from dataclasses import replace

    taken = {rule.errors for rule in rules}
    kept = tuple(rule for rule in base.rules if rule.errors not in taken)
    legal = name if not check_name("name", name) else base.name
    return replace(base, name=legal, version=base.version + 1, rules=(*rules, *kept))

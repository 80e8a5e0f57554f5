"""backtest: scores today's retry policies on the attempt history and proposes better ones as a policy file.

Spark reduces the history to intervals (`curves`) for each topic and error class, some tens of kilobytes. From these the
driver computes the scores and the proposal. The error class of a message is that of its first failure.
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
from retry_topic.spark.jobs.search import ScoredPolicy, search
from wheel_sched.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

LEAST_MESSAGES = 30  # a smaller group has too little data


@dataclass(slots=True)
class Verdict:
    """The result for one topic and error class.

    The *recovery curve* is the probability that a message still fails a given time after its first failure, estimated
    from the history. It predicts how a policy would have done.

    Args:
        topic: topic of the messages.
        error_class: class of their first error.
        messages: messages that failed at least once.
        today: measured in the history: share of successes, tries per message, and wait (p50, p90, p99).
        present: the figures that the curve predicts for today's policy. They show how well the curve fits `today`.
        proposed: the figures that the curve predicts for the proposed policy.
        load: deliveries of these messages today and with the proposal, and their ratio.
        interval: confidence intervals of the proposal's success and tries, at least 95 %; see `curves.interval`.
        policy: the settings of the proposal.
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
    """The result of a backtest.

    Args:
        attempts: rows of the history.
        left_out: rows that are impossible and were not used.
        messages: messages that failed at least once.
        inconsistent: messages that failed again after a success; they were not used.
        small_groups: pairs of topic and error class without a proposal: too few messages, or more pairs than `groups`.
        verdicts: the results, the largest group first.
        policies: the proposal, for `dump_policies`.
    """

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
    """Score today's policies on a history and propose better ones.

    Args:
        history: the attempts; for the columns see `retry_topic.spark.jobs.history`.
        policies: today's policies. Defaults to the default policy.
        groups: propose a policy for at most this many pairs of topic and error class, the largest ones. Defaults to 50.
        resamples: the number of resampled curves for the confidence intervals. Defaults to 60.
        seed: seed of the search and of the resampling. Defaults to 0.

    Raises:
        ConfigError: an argument is wrong, or a column is missing.
    """
    if groups < 1 or resamples < 2:
        raise ConfigError(
            f"expected groups to be at least 1 and resamples at least 2, got: {groups!r} and {resamples!r}"
        )
    today = policies or PolicySet()
    report = Backtest()
    cells, sums = _reduce(check_history(history), report)
    ranked = sorted(sums, key=lambda key: -sums[key]["messages"])
    chosen = [key for key in ranked if sums[key]["messages"] >= LEAST_MESSAGES][:groups]
    report.small_groups = len(sums) - len(chosen)
    proposals: dict[tuple[str, str], ScoredPolicy] = {}
    for key in chosen:
        topic, error_class = key
        happened = _happened(sums[key])
        curve = fit(cells[key])
        best = search(curve, success=happened["success"], wait_p90_ms=happened["wait_ms"]["p90"], seed=seed)
        proposals[key] = best
        present = score(curve, _todays(today, topic, error_class, seed)).as_dict()
        others = resample(cells[key], resamples, seed)
        report.verdicts.append(_verdict(key, sums[key], happened, present, best, intervals_of(best, others, seed)))
    report.policies = _proposal(today, proposals)
    return report


def _happened(sums: dict[str, Any]) -> dict[str, Any]:
    """What happened to the messages of one topic and error class: share of successes, tries per message, and wait."""
    return {
        "success": round(sums["succeeded"] / sums["messages"], 5),
        "tries": round(sums["tries"] / sums["messages"], 3),
        "wait_ms": dict(zip(("p50", "p90", "p99"), sums["waits"] or (0, 0, 0), strict=True)),
    }


def _verdict(
    key: tuple[str, str],
    sums: dict[str, Any],
    happened: dict[str, Any],
    present: dict[str, Any],
    best: ScoredPolicy,
    interval: dict[str, tuple[float, float]],
) -> Verdict:
    load = _load(sums["tries"], best.score.tries * sums["messages"])
    policy = _as_dict(best)
    return Verdict(*key, sums["messages"], happened, present, best.score.as_dict(), load, interval, policy)


def intervals_of(best: ScoredPolicy, others: Sequence[Curve], seed: int) -> dict[str, tuple[float, float]]:
    """The confidence intervals of a proposal's success and tries, from resampled curves."""
    times = schedules(best.delay, best.attempts, seed)
    found: list[Score] = [score(other, times) for other in others]
    return {
        "success": interval(best.score.success, (one.success for one in found), 0.0, 1.0),
        "tries": interval(best.score.tries, (one.tries for one in found), 1.0, float(best.attempts)),
    }


def _reduce(history: DataFrame, report: Backtest) -> tuple[dict[Any, list[Interval]], dict[Any, dict[str, Any]]]:
    """The intervals and the sums of each (topic, error class). Adds the counts of rows and messages to the report."""
    from pyspark.sql import functions as f

    fine = sound(history)
    counted = history.agg(f.count("*").alias("all"), f.sum(f.when(fine, 0).otherwise(1)).alias("bad")).first()
    if counted is not None:
        report.attempts, report.left_out = counted["all"], counted["bad"] or 0
    messages = _messages(history.where(fine))
    consistent = f.col("went").isNull() | (f.col("went") > f.col("failed"))
    report.inconsistent = messages.where(~consistent).count()
    kept = messages.where(consistent)
    sums = _sums(kept)
    report.messages = sum(group["messages"] for group in sums.values())
    return _intervals(kept), sums


def _messages(attempts: DataFrame) -> DataFrame:
    """One row for each message that failed: error class, tries, wait, and the interval in which it recovered."""
    from pyspark.sql import functions as f

    failed, went = f.col("outcome") != "ok", f.col("outcome") == "ok"
    started, klass = f.col("started_ms"), f.coalesce(f.col("error_class"), f.lit(""))
    messages = attempts.groupBy("topic", "id").agg(
        f.min(f.when(failed, started)).alias("first"),
        f.max(f.when(failed, started)).alias("failed"),
        f.min(f.when(went, started)).alias("went"),
        f.min_by(klass, f.when(failed, f.col("attempt"))).alias("error_class"),
        f.count("*").alias("tries"),
    )
    wait, until = f.col("went") - f.col("first"), f.col("failed") - f.col("first")
    high = f.when(f.col("went").isNotNull(), _nearest_line(wait))
    lines = {"low": _nearest_line(until), "high": high, "wait": wait}
    return messages.where(f.col("first").isNotNull()).withColumns(lines)


def _sums(messages: DataFrame) -> dict[Any, dict[str, Any]]:
    """Messages, successes, tries and percentiles of the wait, by (topic, error class)."""
    from pyspark.sql import functions as f

    rows = messages.groupBy("topic", "error_class").agg(
        f.count("*").alias("messages"),
        f.sum(f.when(f.col("went").isNotNull(), 1).otherwise(0)).alias("succeeded"),
        f.sum("tries").alias("tries"),
        f.percentile_approx("wait", [0.5, 0.9, 0.99], 10_000).alias("waits"),
    )
    return {(row["topic"], row["error_class"]): row.asDict() for row in rows.collect()}


def _intervals(messages: DataFrame) -> dict[Any, list[Interval]]:
    """In which intervals messages recovered, and how many messages in each, by (topic, error class).

    An interval begins at the last failure of a message, and ends at its success or never (see `Interval`). The
    intervals of a topic and error class are in ascending order.
    """
    found: dict[Any, list[Interval]] = {}
    for row in messages.groupBy("topic", "error_class", "low", "high").count().collect():
        # a failure and a success may round to one grid line; an interval covers at least one stretch
        high = None if row["high"] is None else max(row["high"], row["low"] + 1)
        found.setdefault((row["topic"], row["error_class"]), []).append(Interval(row["low"], high, row["count"]))
    for intervals in found.values():
        intervals.sort(key=lambda interval: (interval.failed, interval.recovered or len(GRID_MS)))
    return found


def _nearest_line(at_ms: Column) -> Column:
    """The index in `GRID_MS` of the grid line that is nearest to a time after the first failure."""
    from pyspark.sql import functions as f

    line = f.round(f.log2(f.greatest(at_ms, f.lit(1)) / f.lit(LEAST_MS)) * STEPS) + 1
    bounded = f.least(f.lit(len(GRID_MS) - 1), f.greatest(f.lit(1), line))
    return f.when(at_ms < LEAST_MS // 2, f.lit(0)).otherwise(bounded).cast("int")


def _todays(policies: PolicySet, topic: str, error_class: str, seed: int) -> Any:
    """The retry times of today's policy for this topic and error class."""
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


def _as_dict(best: ScoredPolicy) -> dict[str, Any]:
    delay = best.delay
    return {
        "kind": "exponential",
        "base_ms": delay.base_ms,
        "factor": delay.factor,
        "cap_ms": delay.cap_ms,
        "jitter": delay.jitter,
        "max_attempts": best.attempts,
    }


def _proposal(today: PolicySet, found: dict[tuple[str, str], ScoredPolicy]) -> PolicySet:
    """Today's policies, with a new rule for each error class that has a proposal. The new rules come first."""
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

"""audit: reads every item of a store, finds damage, and repairs it where that is safe.

A live store changes while it is read. So the audit reads the store a second time and reports only what is damaged both
times. The script that repairs an item (`mend.lua`) checks the item a third time.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from retry_topic.spark.faults import plain_errors
from retry_topic.spark.jobs.store import read
from retry_topic.spark.source.options import StorePlace
from wheel_sched.store import MAX_BATCH, Counts, DelayStore, Outcome
from wheel_sched.store.core.call import Call
from wheel_sched.store.maintenance.operations import Mend

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REPAIRABLE = frozenset({"no record", "no place", "two places"})
_AT_MOST = 10_000  # findings of one kind in one run; the next run reports the others


@dataclass(frozen=True, slots=True, order=True)
class FlawedItem:
    """One damaged or overdue item.

    Args:
        flaw: what is wrong. `no record`: an index has the id, but the item has no record. `no place`: no index has the
            id of the record. `unreadable record`: the record cannot be decoded. `wrong shard`: the id belongs to
            another shard. `two places`: two indexes of one shard have the id. `two shards`: two shards have the id.
            `expired lease`: the lease ended longer ago than the grace time. `overdue`: the due time passed longer ago
            than the grace time.
        id: the item's id.
        shard: the shard that holds the item.
        state: the state whose index has the id; "" when no index has it.
    """

    flaw: str
    id: str
    shard: int
    state: str


@dataclass(slots=True)
class Audit:
    """What the audit found and repaired.

    Args:
        repair: whether the caller asked for repairs.
        items: number of items in the store.
        found: number of findings of each kind.
        drifted: one text for each counter of a shard that differs from the number of the shard's items.
        findings: the damaged and overdue items; at most 10,000 damaged, 10,000 overdue and 10,000 with two places.
        repaired: the number of items that were repaired.
        recovered: items that wait again, because their lease had expired.
        left: the number of findings that are not repaired.
    """

    repair: bool
    items: int = 0
    found: dict[str, int] = field(default_factory=dict)
    drifted: list[str] = field(default_factory=list)
    findings: list[FlawedItem] = field(default_factory=list)
    repaired: int = 0
    recovered: int = 0
    left: int = 0

    @property
    def healthy(self) -> bool:
        return not self.found and not self.drifted

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"healthy": self.healthy}


@plain_errors
def audit(spark: SparkSession, place: StorePlace, *, grace_ms: int = 60_000, repair: bool = False) -> Audit:
    """Check every item of a store.

    Args:
        spark: the session.
        place: the store.
        grace_ms: report an item whose due time or lease ended longer ago than this. Defaults to 60,000.
        repair: repair what can be repaired, and let items with an expired lease wait again. Defaults to False.

    Raises:
        StoreError: a shard could not be reached. Nothing was reported.
    """
    report = Audit(repair)
    with place.opened() as store:
        first = _suspects(spark, place, store.now_ms() - grace_ms)
        again = set(_suspects(spark, place, store.now_ms() - grace_ms)) if first else set()
        report.findings = sorted(finding for finding in first if finding in again)
        for finding in report.findings:
            report.found[finding.flaw] = report.found.get(finding.flaw, 0) + 1
        counts = store.counts_by_shard()
        report.items = sum(sum(part.sizes[state] for state in ("due", "leased", "held", "dead")) for part in counts)
        report.drifted = [line for shard, part in enumerate(counts) for line in drift(shard, part)]
        if repair:
            _repair(store, report)
    return report


def _suspects(spark: SparkSession, place: StorePlace, before_ms: int) -> list[FlawedItem]:
    from pyspark.sql import functions as f

    seen = read(spark, place, form="damage")
    flawed = seen.where("flaw <> ''").select("flaw", "id", "shard", "state")
    late = seen.where(f.col("state").isin("due", "leased") & (f.col("at_ms") < before_ms) & (f.col("flaw") == ""))
    overdue = late.select(
        f.when(f.col("state") == "leased", "expired lease").otherwise("overdue").alias("flaw"), "id", "shard", "state"
    )
    placed = seen.where("state <> ''").groupBy("id")
    spread = placed.agg(
        f.count_distinct("shard").alias("shards"),
        f.count("*").alias("places"),
        f.min("shard").alias("shard"),
        f.concat_ws("+", f.array_sort(f.collect_set("state"))).alias("state"),
    )
    doubled = spread.where("places > 1").select(
        f.when(f.col("shards") > 1, "two shards").otherwise("two places").alias("flaw"), "id", "shard", "state"
    )
    return [finding for part in (flawed, overdue, doubled) for finding in _collected(part)]


def _collected(part: DataFrame) -> list[FlawedItem]:
    return [FlawedItem(r["flaw"], r["id"], r["shard"], r["state"]) for r in part.limit(_AT_MOST).collect()]


def drift(shard: int, counts: Counts) -> list[str]:
    """One text for each counter of a shard that differs from the number of the shard's items."""
    return [
        f"shard {shard}: {counts.total(state):,} {state} by the counters, {counts.sizes[state]:,} in the index"
        for state in ("due", "leased", "held", "dead")
        if counts.total(state) != counts.sizes[state]
    ]


def _repair(store: DelayStore, report: Audit) -> None:
    by_shard: dict[int, list[str]] = {}
    for finding in report.findings:
        if finding.flaw in REPAIRABLE:
            by_shard.setdefault(finding.shard, []).append(finding.id)
    for shard, ids in by_shard.items():
        unique = list(dict.fromkeys(ids))
        for at in range(0, len(unique), MAX_BATCH):
            (outcomes,) = store.execute([Call(shard, Mend(unique[at : at + MAX_BATCH]))])
            if isinstance(outcomes, Exception):
                raise outcomes
            report.repaired += outcomes.count(Outcome.DONE)
    if "expired lease" in report.found:
        while recovered := sum(swept.recovered for swept in store.sweep()):
            report.recovered += recovered
    fixed = report.repaired + min(report.recovered, report.found.get("expired lease", 0))
    report.left = max(0, len(report.findings) - fixed)

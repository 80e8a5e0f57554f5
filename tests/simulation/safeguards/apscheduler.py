"""Safeguards of APScheduler jobs that several processes share."""

from __future__ import annotations

from tests.simulation.safeguards.switching import Safeguard

APS = "wheel_sched_apscheduler"
STORE = "wheel_sched.store.core"
SAFEGUARDS = [
    Safeguard(
        "finishing a job compares the claim number",
        f"{STORE}.settle:settle_items",
        " or item.claim != claim",
        "",
        "apscheduler",
    ),
    Safeguard(
        "finishing a job compares the version of its record",
        f"{APS}.stores.layout:RunWriter.successor",
        "version=handle.version",
        "version=None",
        "apscheduler",
    ),
    Safeguard(
        "a job that was changed while it ran is read again",
        f"{APS}.stores.claims:InFlightClaims._read",
        "self._writer.merged(pending.occurrence, found, running=pending.split)",
        "Done(found.id)",
        "apscheduler",
    ),
    Safeguard(
        "the lease of a running job is extended",
        f"{APS}.stores.claims:InFlightClaims.heartbeats",
        "if not alive(occurrence):",
        "if True:",
        "apscheduler",
    ),
    Safeguard(
        "a long run is stored beside its job before the job is free",
        f"{APS}.stores.claims:InFlightClaims._gather_splits",
        "gathered.store(handle.shard, item)",
        "pass",
        "apscheduler",
    ),
    Safeguard(
        "commands without an answer are sent again",
        f"{APS}.stores.tracker:ClaimTracker._send",
        "self._claims.keep([command])",
        "pass",
        "apscheduler",
    ),
    Safeguard(
        "a run time is due when the store's clock has reached it",
        f"{APS}.occurrence:Occurrence.due_at",
        "now if self.reached is None else min(now, self.reached)",
        "now",
        "apscheduler",
    ),
    Safeguard(
        "a claim whose answer came after its lease is put back",
        f"{APS}.stores.redis:RedisWheelJobStore.claim_batch",
        "time.monotonic() - asked_s >= self.settings.lease_ms / 1000",
        "False",
        "apscheduler",
    ),
    Safeguard(
        "with at-most-once delivery a run leaves the store before it begins",
        f"{APS}.stores.redis:RedisWheelJobStore.claim_batch",
        'if self.settings.delivery == "at_most_once" and occurrences:',
        "if False:",
        "apscheduler",
    ),
    Safeguard(
        "with at-most-once delivery a run whose settlement was refused does not begin",
        f"{APS}.stores.tracker:ClaimTracker.settle_before_run",
        "occurrence.handle.stale or ",
        "",
        "apscheduler",
    ),
    Safeguard(
        "max_instances counts the runs of all processes",
        f"{APS}.stores.tracker:ClaimTracker.apply_limits",
        "if self._counts_all:",
        "if False:",
        "apscheduler",
    ),
    Safeguard(
        "max_instances holds for a run that was put back",
        f"{APS}.stores.tracker:ClaimTracker.apply_limits",
        "apply_limits(self._connection.store, occurrences)",
        "apply_limits(self._connection.store, [each for each in occurrences if not each.handle.split_item])",
        "apscheduler",
    ),
    Safeguard(
        "a last run that max_instances refuses is tried again",
        f"{APS}.schedulers.claiming_source:ClaimingJobSource._refused",
        "if occurrence.next_run_time is None:",
        "if False:",
        "apscheduler",
    ),
    Safeguard(
        "a wait for max_instances does not count as lateness",
        f"{APS}.stores.loading:ClaimLoader._occurrence",
        "put_back_ms > 0",
        "False",
        "apscheduler",
    ),
    Safeguard(
        "a change of a job wins over its lost run",
        f"{APS}.stores.loading:ClaimLoader._occurrence",
        "if later and not split_item:",
        "if False:",
        "apscheduler",
    ),
    Safeguard(
        "a job that was removed while it ran does not come again",
        f"{STORE}.settle:settle_items",
        "elif item.cancelled and not isinstance(settlement, Dead):",
        "elif False:",
        "apscheduler",
    ),
]

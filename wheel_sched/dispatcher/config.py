"""The settings of a dispatcher: one frozen value, every field with its unit and default."""

from __future__ import annotations

from dataclasses import dataclass, fields

from wheel_sched.errors import ConfigError
from wheel_sched.store.core.items import MAX_BATCH, quoted

_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class DispatcherConfig:
    """Settings of a `Dispatcher`.

    Args:
        batch: items per claim. 0 = as many as keep the server busy for `script_us`, at most 125; see `BatchSize`.
            Defaults to 0.
        script_us: how long the script of a claim may keep the server busy, in microseconds, when `batch` is 0. The
            server's other clients wait during this time. Defaults to 1,000.
        lease_ms: how long a claimed batch belongs to this dispatcher. The dispatcher extends the lease while it
            has the batch. When it dies, others can claim the batch after at most this time. Defaults to 10 s.
        workers: threads that publish, each one batch at a time. When this process is killed, at most this many batches
            can be published twice. Defaults to 1.
        max_in_flight: claimed and unsettled items at which claiming stops (back-pressure). Defaults to 2,000.
        sweep_ms: how often the dispatcher looks at a shard with waiting items if no marker arrives. Defaults to 60 s.
        publish_timeout_ms: after this time a batch is settled with the answers it has, unless the publisher is
            transactional. An item without an answer is in doubt: it becomes due again after a delay, so it may be
            published twice. Defaults to 60 s.
        backoff_ms: first delay of an item whose publishing failed, doubled each time. Defaults to 200 ms.
        backoff_max_ms: greatest delay of an item. A reconnect to the store is delayed by at most this time and at most
            5 s. Defaults to 30 s.
        lapse_cap: an item becomes a dead letter when its lease has run out this often, 0 = never. Defaults to 10.
        dead_cap: dead letters kept in each shard, 0 = all. Defaults to 100,000.
        dead_age_ms: how long dead letters are kept, 0 = for ever. Defaults to 90 days.

    Raises:
        ConfigError: a field is wrong. The error names all fields that are wrong.
    """

    batch: int = 0
    script_us: int = 1_000
    lease_ms: int = 10_000
    workers: int = 1
    max_in_flight: int = 2_000
    sweep_ms: int = 60_000
    publish_timeout_ms: int = 60_000
    backoff_ms: int = 200
    backoff_max_ms: int = 30_000
    lapse_cap: int = 10
    dead_cap: int = 100_000
    dead_age_ms: int = 90 * _DAY_MS

    def __post_init__(self) -> None:
        least = {"batch": 0, "lapse_cap": 0, "dead_cap": 0, "dead_age_ms": 0, "lease_ms": 100}
        problems = []
        for spec in fields(self):
            value = getattr(self, spec.name)
            bound = least.get(spec.name, 1)
            if type(value) is not int or value < bound:
                problems.append(f"expected {spec.name} to be a whole number from {bound} up, got: {quoted(value)}")
        if type(self.batch) is int and self.batch > MAX_BATCH:
            problems.append(f"expected batch to be at most {MAX_BATCH}, got: {quoted(self.batch)}")
        if problems:
            raise ConfigError(problems)

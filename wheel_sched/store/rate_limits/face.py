"""RateLimits: how many items of a topic and of its destinations may be released now. All dispatchers share the limits.

The state of a topic lies in one shard, so a rate limit holds for the whole namespace. Each call is one round trip and
may be repeated: when the reply of an `admit` is lost, at most the slots that it granted are wasted.
Blocking; any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from wheel_sched.store.core.call import Call, Operation
from wheel_sched.store.core.delay_store import DelayStore, values_of
from wheel_sched.store.core.plans import shard_of
from wheel_sched.store.rate_limits.operations import Admit, CountSpread, LookAtFlows, ReportResults
from wheel_sched.store.rate_limits.values import Admitted, Flow, Limits

T = TypeVar("T")


class RateLimits:
    """The rate limits and circuits of a store.

    Args:
        store: an open delay store.
    """

    def __init__(self, store: DelayStore) -> None:
        self._store = store

    def admit(self, topic: str, limits: Limits, wanted: Sequence[tuple[str, int]]) -> list[Admitted]:
        """How many items of each (destination, count) may be released now, and the dues of the others."""
        return self._on(topic, Admit(topic, limits, wanted))

    def report(self, topic: str, rows: Sequence[tuple[str, int, int, int]]) -> None:
        """Report the results of attempts: (destination, first attempts, succeeded, failed)."""
        self._on(topic, ReportResults(topic, rows))

    def spread(self, topic: str, count: int) -> int:
        """Count dues of a topic that its policy has spread. Returns the total."""
        return self._on(topic, CountSpread(topic, count))

    def flows(self) -> list[Flow]:
        """The flows and circuits used in the last hour."""
        answers = self._store.execute([Call(shard, LookAtFlows()) for shard in range(self._store.shards)])
        return [flow for found in values_of(answers) for flow in found]

    def _on(self, topic: str, operation: Operation[T]) -> T:
        value: T = values_of(self._store.execute([Call(shard_of(topic, self._store.shards), operation)]))[0]
        return value

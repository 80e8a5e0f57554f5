"""Narrows the scope of a read by the filters that Spark gives to a data source."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from retry_topic.spark.source.options import Scope
from wheel_sched.store.core.items import MAX_DUE_MS, STATES


def narrow(scope: Scope, given: Filter) -> Scope | None:
    """The scope with this filter applied; None if only Spark can apply the filter."""
    if isinstance(given, EqualTo | In):
        name = given.attribute[-1]
        values = [given.value] if isinstance(given, EqualTo) else list(given.value)
        if name == "state" and all(isinstance(value, str) for value in values):
            return replace(scope, states=tuple(s for s in STATES if s in values and s in scope.states))
        if name == "shard" and all(isinstance(value, int) for value in values):
            kept = frozenset(values) if scope.shards is None else scope.shards & frozenset(values)
            return replace(scope, shards=kept)
        if name == "at_ms" and isinstance(given, EqualTo) and isinstance(given.value, int):
            return _within(scope, given.value, given.value)
        return None
    if isinstance(given, GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
        value = given.value
        if given.attribute[-1] != "at_ms" or not isinstance(value, int):
            return None
        if isinstance(given, GreaterThan | GreaterThanOrEqual):
            return _within(scope, value + isinstance(given, GreaterThan), MAX_DUE_MS)
        return _within(scope, 0, value - isinstance(given, LessThan))
    return None


def _within(scope: Scope, least_ms: int, greatest_ms: int) -> Scope:
    from_ms, until_ms = max(scope.from_ms, least_ms), min(scope.until_ms, greatest_ms)
    if until_ms < from_ms:
        return replace(scope, states=())  # no item can match
    return replace(scope, from_ms=from_ms, until_ms=until_ms)

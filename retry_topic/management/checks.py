"""Adds to `wheel-sched doctor` and `stats`: how due messages reach their topics, and retries that no service reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retry_topic.brokers.protocol import Broker
from retry_topic.brokers.redis_streams import RedisStreamsBroker
from retry_topic.connection import Connection
from retry_topic.management.opening import kafka_broker
from retry_topic.management.settings import RetrySettings
from retry_topic.management.untaken import NOT_ON_KAFKA, MissingServices, missing_services
from wheel_sched.config import Loaded
from wheel_sched.errors import ConfigError
from wheel_sched.extensions import StatsPart
from wheel_sched.management.doctor.finding import ExaminedTarget, Finding, ok, problem, warn
from wheel_sched.store import DelayStore, LiveMember, Members
from wheel_sched.store.redis.backend import RedisBackend
from wheel_sched.store.redis.round_trips import Dialect


def hand_over(target: ExaminedTarget, loaded: Loaded) -> Finding:
    """Report how due messages reach their topics, and what guarantee this gives."""
    settings = loaded.read(RetrySettings)
    try:
        mode = _hand_over(target, settings)
    except ConfigError as error:
        return problem("hand-over", f"--kafka: {error}", "correct the client's settings")
    if mode == "one script":
        return ok("hand-over", "one script: exactly once, because store and topics share the server")
    if mode == "transactions":
        return ok(
            "hand-over",
            "transactions: exactly once for consumers that read committed records; `wheel-sched kafka doctor`",
        )
    return ok("hand-over", f"{mode}: at least once, with a stable id")


def _hand_over(target: ExaminedTarget, settings: RetrySettings) -> str:
    """How a service with these settings would bring due messages into their topics, see `Connection.hand_over`.

    This creates nothing and sends no request to Kafka.
    """
    broker: Broker
    if settings.kafka is not None:
        broker = kafka_broker(settings)
    else:
        broker = RedisStreamsBroker(target.client, prefix=settings.prefix)
    try:
        return Connection(DelayStore(RedisBackend(target.client, Dialect(settings.namespace))), broker).hand_over
    finally:
        broker.close()


def retries(target: ExaminedTarget, loaded: Loaded) -> Finding:
    """Check that a retry service reads each retry topic that holds messages, or that live consumers may write to."""
    found = _missing(target.client, loaded.read(RetrySettings), target.members, target.now_ms)
    if problems := found.problems(target.now_ms):
        level = problem if problems[0].level == "problem" else warn
        return level("retries", "; ".join(one.what for one in problems[:3]), "; ".join(one.fix for one in problems))
    return ok("retries", NOT_ON_KAFKA if found.untaken is None else "none wait without a retry service")


def retries_in_stats(store: DelayStore, loaded: Loaded) -> StatsPart:
    """The part of `wheel-sched stats` about retries that no service reads.

    If the broker has an error, this part only shows the error, so that `stats` can show its other parts.
    """
    backend: Any = store.backend
    members, now_ms = Members(store).live(), store.now_ms()
    found = _missing(backend.client, loaded.read(RetrySettings), members, now_ms)
    lines = [f"{one.what}: {one.fix}" for one in found.problems(now_ms) if one.what != found.refused]
    if found.untaken is None and not found.refused:
        lines.insert(0, NOT_ON_KAFKA)
    untaken = None if found.untaken is None else [one.as_dict() for one in found.untaken]
    fields = {"untaken": untaken, "unserved": [{"group": one.group, "topic": one.topic} for one in found.unserved]}
    notes = (found.refused,) if found.refused else ()
    return StatsPart(fields, tuple(("retries", line) for line in lines), notes)


def _missing(client: Any, settings: RetrySettings, members: Sequence[LiveMember], now_ms: int) -> MissingServices:
    """The missing retry services, as the topics on the store's server show them. Sends no request to Kafka."""
    if settings.kafka is not None:
        return missing_services(None, settings.retry_topic, members, now_ms)
    broker = RedisStreamsBroker(client, prefix=settings.prefix)
    try:
        return missing_services(broker, settings.retry_topic, members, now_ms)
    finally:
        broker.close()

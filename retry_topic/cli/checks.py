"""What `wheel-sched doctor` and `stats` report: how due messages reach their topics, and retries that nobody reads."""

from __future__ import annotations

from typing import Any

from retry_topic.brokers.protocol import Broker
from retry_topic.brokers.redis_streams import RedisStreamsBroker
from retry_topic.cli.opening import kafka_broker
from retry_topic.cli.settings import RetrySettings
from retry_topic.cli.untaken import NOT_ON_KAFKA, UntakenRetries, untaken_retries
from retry_topic.connection import Connection
from wheel_sched.cli.doctor_finding import ExaminedTarget, Finding, ok, problem
from wheel_sched.cli.extensions import StatsPart
from wheel_sched.cli.output import note
from wheel_sched.config import Loaded
from wheel_sched.errors import BrokerError, ConfigError
from wheel_sched.store import DelayStore
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
    """How a service with these settings would hand due messages over: see `Connection.hand_over`.

    Nothing is created, and no request is sent to Kafka.
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
    """Check that a retry service reads each retry topic that holds messages."""
    found = _untaken(target.client, loaded.read(RetrySettings))
    if found is None:
        return ok("retries", NOT_ON_KAFKA)
    if not found:
        return ok("retries", "none wait without a retry service")
    return problem(
        "retries",
        "; ".join(one.what(target.now_ms) for one in found[:3]),
        "; ".join(one.fix for one in found),
    )


def retries_in_stats(store: DelayStore, loaded: Loaded) -> StatsPart:
    """Retries that no service reads, for `stats`.

    An error of the broker is only printed as a note, so that `stats` can still show its other parts.
    """
    backend: Any = store.backend
    try:
        found = _untaken(backend.client, loaded.read(RetrySettings))
    except BrokerError as error:
        note(f"retry topics could not be looked at: {error}")
        return StatsPart({"untaken": None})
    if found is None:
        return StatsPart({"untaken": None}, (("retries", NOT_ON_KAFKA),))
    now_ms = store.now_ms() if found else 0
    return StatsPart(
        {"untaken": [one.as_dict() for one in found]}, tuple(("retries", one.line(now_ms)) for one in found)
    )


def _untaken(client: Any, settings: RetrySettings) -> list[UntakenRetries] | None:
    """The retries on the store's server that no service reads.

    None when the topics are on Kafka. No request is sent to Kafka.
    """
    if settings.kafka is not None:
        return None
    broker = RedisStreamsBroker(client, prefix=settings.prefix)
    try:
        return untaken_retries(broker, settings.retry_topic)
    finally:
        broker.close()

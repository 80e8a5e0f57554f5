"""Opens what the settings name: the connection to store and topics, the Kafka cluster, secrets, policies.

Connections make tracing spans if the process has a tracer provider, see `process_tracing`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retry_topic.brokers.protocol import Broker
from retry_topic.connection import Connection
from retry_topic.consumer.config import secrets_problems
from retry_topic.management.settings import RetrySettings
from retry_topic.policy import PolicySet, load_policies
from retry_topic.span_guard import SpanGuard
from wheel_sched.errors import ConfigError
from wheel_sched.management.opening import opened

if TYPE_CHECKING:
    from retry_topic.brokers.kafka import KafkaBroker
    from retry_topic.tracing import Tracing  # importing it needs the extra `otel`

_KEEP = 10_000  # how many settled records a topic keeps, the default of `connect`


@contextlib.contextmanager
def opened_connection(settings: RetrySettings, *, create: bool = False) -> Iterator[Connection]:
    """Open the store and the topics for a `with` block. With `create`, create a missing namespace and data folder."""
    from retry_topic.brokers.redis_streams import RedisStreamsBroker  # first, as its extra may be absent

    with contextlib.ExitStack() as stack:
        broker: Broker | None = None
        if settings.kafka is not None:  # comes before the store, because Kafka's settings can be wrong
            broker = stack.enter_context(contextlib.closing(kafka_broker(settings)))
        store = stack.enter_context(opened(settings, create=create))
        if broker is None:
            backend: Any = store.backend  # a store with an address has a backend with a client
            broker = RedisStreamsBroker(
                backend.client,
                prefix=settings.prefix,
                maxlen=_KEEP,
                durability=settings.durability,
                replicas=settings.replicas,
            )
        yield stack.enter_context(Connection(store, broker, tracing=process_tracing()))


def process_tracing() -> Tracing | None:
    """Makes spans with this process's tracer provider; None if the process has set no provider.

    `opentelemetry-instrument` sets a provider before a program starts. An application that mounts the dashboard may set
    one too. Without OpenTelemetry this function costs one look-up.
    """
    return SpanGuard()(_process_tracing, None)


def _process_tracing() -> Tracing | None:
    api = sys.modules.get("opentelemetry.trace")
    if api is None or isinstance(api.get_tracer_provider(), api.ProxyTracerProvider | api.NoOpTracerProvider):
        return None
    from retry_topic.tracing import Tracing

    return Tracing()


def kafka_broker(settings: RetrySettings, **more: Any) -> KafkaBroker:
    """The Kafka cluster of the settings. It is not connected yet.

    Raises:
        ConfigError: the settings name no cluster, the extra `kafka` is not installed, the file of client properties is
            unreadable, or a setting is wrong.
    """
    client = cluster_of(settings)
    try:
        from retry_topic.brokers.kafka import KafkaBroker
    except ImportError as error:
        raise ConfigError('Kafka needs the extra: pip install "wheel-sched[kafka]"; nothing was opened') from error
    if settings.group_protocol is not None:
        client["group.protocol"] = settings.group_protocol  # the command's setting wins over the file
    client.setdefault("log_level", "0")  # librdkafka logs each failed attempt, and the errors say the same
    return KafkaBroker(client, transactions=settings.transactions, **more)


def cluster_of(settings: RetrySettings) -> dict[str, str]:
    """The settings of a client of the Kafka cluster.

    Raises:
        ConfigError: the settings name no cluster, or `kafka_settings` refuses the file of client properties.
    """
    if settings.kafka is None:
        raise ConfigError("which cluster? Give --kafka HOST:PORT, WHEEL_SCHED_KAFKA or kafka = in wheel-sched.toml")
    return kafka_settings(settings.kafka)


def kafka_settings(servers: str) -> dict[str, str]:
    """The settings of a Kafka client. `servers` is an address, or the path of a file of client properties.

    Raises:
        ConfigError: the file is unreadable, or a line is not name=value. The error quotes no line, because lines may
            hold passwords.
    """
    if not servers.endswith(".properties"):
        return {"bootstrap.servers": servers}
    try:
        text = Path(servers).read_text("utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "bytes that are not UTF-8"
        raise ConfigError(
            f"expected {servers} to be a readable file of client properties, got: {reason}; nothing was opened"
        ) from error
    found: dict[str, str] = {}
    problems = []
    line = ""
    for number, part in enumerate(text.splitlines(), 1):
        if not line and part.lstrip().startswith(("#", "!")):
            continue
        line += part.strip()
        if line.endswith("\\"):  # the line continues
            line = line[:-1]
            continue
        name, equals, value = line.partition("=")
        if equals and name.strip():
            found[name.strip()] = value.strip()
        elif line:
            problems.append(f"{servers}, line {number}: expected name=value; nothing was opened")
        line = ""
    if problems:
        raise ConfigError(problems)
    return found


def secrets_of(settings: RetrySettings) -> tuple[bytes, ...]:
    """The secrets in the file that the settings name; none without a file. The first secret signs headers.

    Raises:
        ConfigError: the file is unreadable or empty, or its secrets are too short. The error quotes no secret.
    """
    if settings.secrets is None:
        return ()
    try:
        lines = Path(settings.secrets).read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(
            f"expected {settings.secrets} to be a readable file of secrets, got: {error.strerror}; nothing was done"
        ) from error
    secrets = tuple(line.strip() for line in lines if line.strip())
    problems = secrets_problems(secrets) if secrets else ["expected one secret in each line, got: an empty file"]
    if problems:
        raise ConfigError([f"{settings.secrets}: {problem}" for problem in problems])
    return secrets


def policies_of(settings: RetrySettings, file: str | None = None) -> PolicySet:
    """Load retry policies.

    Args:
        settings: names the file when `file` is None.
        file: a TOML file, or "default" for the built-in policy. Defaults to None.

    Raises:
        ConfigError: the file has mistakes. The error lists each of them.
    """
    path = file or settings.policies
    return PolicySet() if path in (None, "default") else load_policies(Path(str(path)))

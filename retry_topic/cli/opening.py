"""Open the home (store and topics) that the settings name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retry_topic.brokers.protocol import Broker
from retry_topic.cli.settings import RetrySettings
from retry_topic.consumer.config import secrets_problems
from retry_topic.home import Home
from retry_topic.policy import PolicySet, load_policies
from wheel_sched.cli.opening import server_url, shards_of
from wheel_sched.errors import ConfigError
from wheel_sched.store import DelayStore, open_store

if TYPE_CHECKING:
    from retry_topic.brokers.kafka import KafkaBroker

KEEP = 10_000  # records of a topic that stay after every group has settled them, as `connect` has it


@contextlib.contextmanager
def opened_home(settings: RetrySettings, *, create: bool = False) -> Iterator[Home]:
    """The home, closed at the end of the block; only with `create` is a namespace or a data folder made."""
    with contextlib.ExitStack() as stack:
        broker: Broker | None = None
        if settings.kafka is not None:  # before anything is made: its settings can be wrong
            broker = stack.enter_context(contextlib.closing(kafka_broker(settings)))
        url = stack.enter_context(server_url(settings, create=create))
        store = open_store(
            url,
            namespace=settings.namespace,
            shards=shards_of(settings, url, create=create),
            durability=settings.durability,
            replicas=settings.replicas,
        )
        with store, Home(store, broker or _streams(settings, store)) as home:
            yield home


def _streams(settings: RetrySettings, store: DelayStore) -> Broker:
    from retry_topic.brokers.redis_streams import RedisStreamsBroker  # explaining a policy needs no client

    client: Any = getattr(store.backend, "client")  # noqa: B009  # of the kind of backend that a URL gives
    return RedisStreamsBroker(
        client, prefix=settings.prefix, maxlen=KEEP, durability=settings.durability, replicas=settings.replicas
    )


def kafka_broker(settings: RetrySettings, **more: Any) -> KafkaBroker:
    """The cluster that the settings name; nothing is connected to yet.

    Raises:
        ConfigError: they name none, the extra is missing, the file cannot be read, or a setting is wrong.
    """
    if settings.kafka is None:
        raise ConfigError("which cluster? Give --kafka HOST:PORT, WHEEL_SCHED_KAFKA or kafka = in wheel-sched.toml")
    try:
        from retry_topic.brokers.kafka import KafkaBroker
    except ImportError as error:
        raise ConfigError('Kafka needs the extra: pip install "wheel-sched[kafka]"; nothing was opened') from error
    client = kafka_settings(settings.kafka)
    if settings.group_protocol is not None:
        client["group.protocol"] = settings.group_protocol  # said nearer than in the file of a client
    client.setdefault("log_level", "0")  # each try of a client in vain is a line; errors say why
    return KafkaBroker(client, transactions=settings.transactions, **more)


def kafka_settings(servers: str) -> dict[str, str]:
    """The client's settings: the address, or what a file of client properties holds.

    Raises:
        ConfigError: the file cannot be read, or a line of it is no property; what it holds is not quoted.
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
        if line.endswith("\\"):  # goes on in the next one
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
    """The secrets of the file that the settings name, the signing one first; none without a file.

    Raises:
        ConfigError: it cannot be read, or holds none that is long enough; none is quoted.
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
    problems = secrets_problems(secrets) if secrets else ["expected a secret a line, got: an empty file"]
    if problems:
        raise ConfigError([f"{settings.secrets}: {problem}" for problem in problems])
    return secrets


def policies_of(settings: RetrySettings, file: str | None = None) -> PolicySet:
    """The policies of a file ("default" = the built-in one), else those of the settings.

    Raises:
        ConfigError: with every mistake of the file.
    """
    path = file or settings.policies
    return PolicySet() if path in (None, "default") else load_policies(Path(str(path)))

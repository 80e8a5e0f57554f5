"""Options of `format("wheelsched-kafka")`. They have the JVM connector's names, and are all checked at once.

An option `kafka.NAME` is the librdkafka setting NAME, such as a security setting. Spark passes option names in lower
case, and librdkafka's names are in lower case.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from wheel_sched.errors import ConfigError

if TYPE_CHECKING:
    from retry_topic.brokers.kafka import KafkaBroker

LATEST, EARLIEST = -1, -2  # instead of an offset, as in the JVM connector
Offsets = dict[str, dict[str, int]]  # topic -> partition -> the next offset

_NAMES = {
    "subscribe",
    "topic",
    "startingoffsets",
    "endingoffsets",
    "maxoffsetspertrigger",
    "failondataloss",
    "includeheaders",
    "job_id",
    "in_doubt",
}
_SPARKS = {"checkpointlocation", "queryname", "path"}  # Spark passes its own options of a stream too
_CLIENT = "kafka."
_NOT_OURS = ("subscribe", "startingoffsets", "endingoffsets", "maxoffsetspertrigger", "failondataloss")
# a transaction lasts as long as a task; most clusters allow 15 min
_WRITING = {"linger.ms": 20, "batch.num.messages": 10_000}
DELIVERY_MS, TRANSACTION_MS = 120_000, 600_000

Settings = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class KafkaReadOptions:
    """Which topics and offsets to read.

    Args:
        settings: librdkafka settings of the client.
        topics: the topics.
        starting: where a new query begins: `LATEST`, `EARLIEST`, or offsets (partitions without one: `EARLIEST`).
        ending: where a batch ends. Defaults to `LATEST`.
        most: about this many offsets in one batch of a stream. Defaults to None: all.
        lossy: whether to skip records that the cluster has deleted. Defaults to False: the query fails.
    """

    settings: Settings
    topics: tuple[str, ...]
    starting: int | Offsets
    ending: int | Offsets = LATEST
    most: int | None = None
    lossy: bool = False


@dataclass(frozen=True, slots=True)
class KafkaWriteOptions:
    """Which topics to write.

    Args:
        settings: librdkafka settings of the client.
        topic: topic of all rows; None: each row has a column `topic`.
        in_doubt: whether to write even if the cluster has deleted the marks of earlier epochs.
    """

    settings: Settings
    topic: str | None
    in_doubt: bool


def settings_of(options: Mapping[str, str]) -> Settings:
    """The librdkafka settings among the options of a read or a write, without the prefix `kafka.`."""
    found = {name.lower()[len(_CLIENT) :]: text for name, text in options.items() if name.lower().startswith(_CLIENT)}
    return tuple(sorted(found.items()))


@lru_cache(maxsize=8)
def broker_of(settings: Settings) -> KafkaBroker:
    """A client of the cluster. This process keeps it for later calls, because connecting costs more than most calls.

    Raises:
        ConfigError: the extra is missing, or a setting is wrong; nothing was done.
    """
    try:
        from retry_topic.brokers.kafka import KafkaBroker
    except ImportError as error:
        raise ConfigError('Kafka needs the extra: pip install "wheel-sched[kafka]"; nothing was done') from error
    given = dict(settings)
    longest = int(given.pop("transaction.timeout.ms", TRANSACTION_MS))
    delivery = int(given.pop("delivery.timeout.ms", min(DELIVERY_MS, longest - 1)))
    return KafkaBroker({**_WRITING, **given}, delivery_timeout_ms=delivery, transaction_timeout_ms=longest)


def read_options(options: Mapping[str, str], *, streaming: bool) -> KafkaReadOptions:
    """Parse and check the options of a read.

    Raises:
        ConfigError: an option is wrong or unknown, or a topic is missing; nothing was read.
        BrokerError: the cluster does not answer.
    """
    problems = problems_of(options)
    topics = tuple(dict.fromkeys(name.strip() for name in options.get("subscribe", "").split(",") if name.strip()))
    if not topics:
        problems.append("expected option subscribe to name topics, separated by commas")
    starting = _offsets(options, "startingOffsets", LATEST if streaming else EARLIEST, topics, problems)
    if streaming and "endingoffsets" in options:
        problems.append("expected no option endingOffsets: a stream has no end")
    ending = LATEST if streaming else _offsets(options, "endingOffsets", LATEST, topics, problems)
    if ending == EARLIEST:
        problems.append("expected option endingOffsets to be latest or offsets, got: earliest")
    most = options.get("maxoffsetspertrigger")
    if most is not None and not (most.isdigit() and 0 < int(most) < 2**53):
        problems.append(f"expected option maxOffsetsPerTrigger to be a whole number from 1 up, got: {most!r}")
        most = None
    careful = _flag(options, "failOnDataLoss", True, problems)
    include_headers(options, problems)
    if problems:
        raise ConfigError([*problems, "nothing was read"])
    settings = settings_of(options)
    check_topics(broker_of(settings), topics)
    return KafkaReadOptions(settings, topics, starting, ending, None if most is None else int(most), not careful)


def write_options(options: Mapping[str, str]) -> KafkaWriteOptions:
    """Parse and check the options of a write.

    Raises:
        ConfigError: an option is wrong or unknown; nothing was written.
    """
    problems = problems_of(options)
    problems += [f"expected no option {name} for a write" for name in _NOT_OURS if name in options]
    in_doubt = options.get("in_doubt", "refuse")
    if in_doubt not in ("refuse", "write"):
        problems.append(f"expected option in_doubt to be refuse or write, got: {in_doubt!r}")
    if problems:
        raise ConfigError([*problems, "nothing was written"])
    return KafkaWriteOptions(settings_of(options), options.get("topic"), in_doubt == "write")


def include_headers(options: Mapping[str, str], problems: list[str]) -> bool:
    """Whether to read the column `headers`. Adds a text to `problems` if the option is wrong."""
    return _flag(options, "includeHeaders", True, problems)


def problems_of(options: Mapping[str, str]) -> list[str]:
    """The problems with the options that reads and writes share."""
    problems = [
        f"there is no option {name!r} (there are: {', '.join(sorted(_NAMES))}, and kafka.*)"
        for name in sorted(map(str.lower, options))
        if name not in _NAMES | _SPARKS and not name.startswith(_CLIENT)
    ]
    settings = dict(settings_of(options))
    if not settings.get("bootstrap.servers"):
        problems.append("expected option kafka.bootstrap.servers to be host:port,host:port")
    longest = settings.get("transaction.timeout.ms", str(TRANSACTION_MS))
    if not longest.isdigit() or int(longest) <= 1_000:
        problems.append(f"expected option kafka.transaction.timeout.ms to be above 1000, got: {longest!r}")
    return problems


def check_topics(broker: KafkaBroker, topics: tuple[str, ...]) -> None:
    """Raise `ConfigError` if one of the topics does not exist."""
    for topic in topics:
        broker.topology.forget(topic)
    if absent := [topic for topic in topics if not broker.topology.partitions(topic)]:
        raise ConfigError(f"there is no topic {', '.join(absent)}: nothing was read or written")


def _flag(options: Mapping[str, str], name: str, default: bool, problems: list[str]) -> bool:
    text = options.get(name.lower(), str(default)).lower()
    if text not in ("true", "false"):
        problems.append(f"expected option {name} to be true or false, got: {text!r}")
    return text == "true"


def _offsets(
    options: Mapping[str, str], name: str, default: int, topics: tuple[str, ...], problems: list[str]
) -> int | Offsets:
    text = options.get(name.lower())
    if text is None or text.lower() in ("latest", "earliest"):
        return default if text is None else LATEST if text.lower() == "latest" else EARLIEST
    try:
        found = json.loads(text)
        parsed: Offsets = {
            topic: {str(int(number)): _offset(offset) for number, offset in parts.items()}
            for topic, parts in found.items()
        }
    except (ValueError, TypeError, AttributeError, RecursionError):
        problems.append(
            f'expected option {name} to be earliest, latest or JSON like {{"topic": {{"0": 23, "1": -2}}}}, got: {text}'
        )
        return default
    if strange := sorted(parsed.keys() - set(topics)):
        problems.append(f"expected the topics of option {name} among those of subscribe, got: {', '.join(strange)}")
    return parsed


def _offset(value: Any) -> int:
    if type(value) is not int or value < EARLIEST:
        raise ValueError(value)
    return value

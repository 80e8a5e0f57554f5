"""Fair shares as data: by which key the due messages of a topic are shared, and what a key may take.

A fair key names who a message belongs to, such as a tenant. Due messages of a topic go out by weighted shares between
the keys that have any.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from retry_topic.message import Message
from retry_topic.policy.checks import check_duration, check_integer, check_number
from retry_topic.policy.flow import Rate
from retry_topic.policy.key_source import parse_key_source
from wheel_sched.duration import format_duration
from wheel_sched.errors import ConfigError
from wheel_sched.store.fair_shares import GREATEST_WEIGHT, LEAST_WEIGHT, MAX_WEIGHTS, FairSettings, fair_ref

_MOST_IN_FLIGHT = 1_000_000
_source = lru_cache(maxsize=1024)(parse_key_source)  # every message asks for the source of its topic


@dataclass(frozen=True, slots=True)
class Fair:
    """How the due messages of a topic are shared between fair keys.

    Args:
        key: where a message has its fair key: "key" (the message key), "header:<name>", or "json:<JSON pointer>" into a
            JSON payload, such as "json:/customer/id". Messages without it share the key "".
        weights: keys with a weight of their own, as (key, weight). A key of weight 4 gets four times the share of a key
            of weight 1. Weights are 0.01 to 100. Defaults to none.
        default_weight: the weight of all other keys. Defaults to 1.
        max_in_flight: how many messages of a key may be released and not yet handled, 0 = any number. On Kafka with
            several shards, each shard has its part, and at least one message. Consumers need `reports=True`. Defaults
            to 0.
        in_flight_timeout_ms: after this time a released message counts as handled. Defaults to 600,000 (10 min).
        rate: most messages of one key released per unit of time. Defaults to None: no limit.

    Raises:
        ConfigError: with every setting that is wrong.
    """

    key: str
    weights: tuple[tuple[str, float], ...] = ()
    default_weight: float = 1
    max_in_flight: int = 0
    in_flight_timeout_ms: int = 600_000
    rate: Rate | None = None

    def __post_init__(self) -> None:
        problems = _check_key(self.key)
        for name, weight in self.weights:
            problems += check_number(f"fair.weights.{name}", weight, LEAST_WEIGHT, GREATEST_WEIGHT)
        if len(self.weights) > MAX_WEIGHTS:
            problems.append(f"expected fair.weights to have at most {MAX_WEIGHTS} keys, got: {len(self.weights)}")
        problems += check_number("fair.default_weight", self.default_weight, LEAST_WEIGHT, GREATEST_WEIGHT)
        problems += check_integer("fair.max_in_flight", self.max_in_flight, 0, _MOST_IN_FLIGHT)
        problems += check_duration("fair.in_flight_timeout", self.in_flight_timeout_ms, 1000)
        if self.rate is not None and not isinstance(self.rate, Rate):
            problems.append(f"expected fair.rate to be a Rate or None, got: {self.rate!r}")
        if problems:
            raise ConfigError(problems)

    @property
    def capped(self) -> bool:
        """Whether a single key has a limit, so that all its messages must lie in one shard."""
        return bool(self.max_in_flight or self.rate)

    def ref_of(self, message: Message) -> str:
        """The ref that gives an item of this message its fair key."""
        return fair_ref(key_of(self.key, message))

    def place_of(self, message: Message, *, by_key: bool) -> tuple[tuple[str, ...], str | None]:
        """The refs and the route of an item of this message.

        `by_key`: all messages of a key with a limit must lie in one shard.
        """
        ref = self.ref_of(message)
        return (ref,), ref if by_key and self.capped else None


def key_of(where: str, message: Message) -> str | bytes:
    """The fair key of a message; "" if it has none. `where`: as `Fair.key`.

    In a text of a JSON payload, "?" takes the place of a lone surrogate.
    """
    source = _source(where)
    key = source.of(message) or b""
    return key.decode("utf-8", "surrogatepass").encode("utf-8", "replace").decode() if source.kind == "json" else key


def _check_key(key: object) -> list[str]:
    try:
        parse_key_source(key)
    except ConfigError:
        return [
            'expected fair.key to be "key", "header:<name>" or "json:<JSON pointer>" such as "json:/customer/id", '
            f"got: {key!r}"
        ]
    return []


def settings_of(fair: Fair, rate: Rate | None, burst: int, shards: int, *, by_key: bool) -> FairSettings:
    """A topic's fair shares in the form that the store takes.

    Args:
        fair: the settings.
        rate: the rate of the whole topic.
        burst: how many messages of the topic may be released at once after a pause.
        shards: number of shards of the store. Each shard gets its part of `rate` and `burst`.
        by_key: whether all messages of a fair key lie in one shard. If so, a shard gets the whole limits of its keys,
            otherwise its part of them, and at least one message in flight.
    """
    of_key = 1 if by_key else shards
    return FairSettings(
        weights=dict(fair.weights),
        default_weight=fair.default_weight,
        max_in_flight=max(1, fair.max_in_flight // of_key) if fair.max_in_flight else 0,
        ends="reported",
        in_flight_ms=fair.in_flight_timeout_ms,
        key_interval_us=fair.rate.interval_us * of_key if fair.rate else 0,
        interval_us=rate.interval_us * shards if rate else 0,
        burst=-(-burst // shards) if rate else 0,
    )


def fair_in_words(fair: Fair) -> list[str]:
    """What the settings do, in words."""
    source = parse_key_source(fair.key)
    where = {"key": "the message key", "header": f"the header {source.name}"}.get(
        source.kind, f"{source.name} of the JSON payload"
    )
    lines = [f"fair: due messages are shared between the keys in {where}; messages without it share one key"]
    if fair.weights or fair.default_weight != 1:
        weights = ", ".join(f"{name} {weight:g}" for name, weight in fair.weights[:12])
        more = f" and {len(fair.weights) - 12} more" if len(fair.weights) > 12 else ""
        lines.append(f"fair weights: {weights}{more}{', ' if weights else ''}every other key {fair.default_weight:g}")
    if fair.max_in_flight:
        lines.append(
            f"fair max_in_flight: at most {fair.max_in_flight} messages of a key are released and not yet handled, as "
            f"consumers report (reports=True), for {format_duration(fair.in_flight_timeout_ms)} at most"
        )
    if fair.rate:
        lines.append(f"fair rate: at most {fair.rate} of each key are released")
    return lines

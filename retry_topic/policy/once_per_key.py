"""Collapse and debounce as data: of several retries that wait under one key, only one goes out."""

from __future__ import annotations

from dataclasses import dataclass

from retry_topic.message import Message
from retry_topic.policy.checks import check_duration
from retry_topic.policy.key_source import KeySource
from wheel_sched.duration import format_duration
from wheel_sched.errors import ConfigError
from wheel_sched.store.once_per_key import LONGEST_WAIT_MS, collapse_ref, debounce_ref


@dataclass(frozen=True, slots=True)
class Collapse:
    """While a retry waits under a key, later retries of this key are dropped: the first one goes out.

    It does nothing for messages of ordering keys. On Kafka, and with several shards for fair keys with a limit, it
    holds in each shard of the store.

    Args:
        key: where a message's key comes from. A message without a key is retried as usual.
    """

    key: KeySource

    def ref(self, key: bytes) -> str:
        """The ref of an item with this key."""
        return collapse_ref(key)

    @property
    def words(self) -> str:
        """What the setting does."""
        return f"collapse: while a retry waits, later ones with the same {_named(self.key)} are dropped"


@dataclass(frozen=True, slots=True)
class Debounce:
    """A new retry takes the place of the one that waits under its key: the last one goes out.

    It does nothing for messages of ordering keys. On Kafka, and with several shards for fair keys with a limit, it
    holds in each shard of the store.

    Args:
        key: where a message's key comes from. A message without a key is retried as usual.
        max_wait_ms: a retry is due at most this long after the first one of its key was stored, however often others
            take its place, and even if its own delay is longer. Defaults to 3,600,000 (1 h).
    """

    key: KeySource
    max_wait_ms: int = LONGEST_WAIT_MS

    def __post_init__(self) -> None:
        if problems := check_duration("debounce.max_wait", self.max_wait_ms, 1):
            raise ConfigError(problems)

    def ref(self, key: bytes) -> str:
        """The ref of an item with this key."""
        return debounce_ref(key, self.max_wait_ms)

    @property
    def words(self) -> str:
        """What the setting does."""
        wait = format_duration(self.max_wait_ms)
        return (
            f"debounce: a new retry takes the place of the one that waits with the same {_named(self.key)}; "
            f"the last one is due at most {wait} after the first"
        )


def ref_and_key(once: Collapse | Debounce | None, message: Message) -> tuple[str, bytes] | None:
    """The ref of a message's item, and its key; None if the policy has no such setting or the message has no key."""
    key = None if once is None else once.key.of(message)
    return None if once is None or key is None else (once.ref(key), key)


def check_once(collapse: object, debounce: object) -> list[str]:
    """The problems of a policy's settings `collapse` and `debounce`."""
    problems = []
    for name, value, kind in (("collapse", collapse, Collapse), ("debounce", debounce, Debounce)):
        if value is not None and not isinstance(value, kind):
            problems.append(f"expected {name} to be a {kind.__name__} or None, got: {value!r}")
    if collapse is not None and debounce is not None:
        problems.append("expected collapse or debounce, got: both; the first or the last of a key goes out, not both")
    return problems


def _named(key: KeySource) -> str:
    return {"key": "message key", "header": f"header {key.name}", "json": f"value at {key.name} in the payload"}[
        key.kind
    ]

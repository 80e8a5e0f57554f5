"""Fair topics: tells the store which topics of a service share their due messages between keys.

The settings lie in the store, so every dispatcher of the namespace obeys them. The service that started last writes
them. All services of a namespace must use the same policies.

For each topic, the service also stores a document that says where a message has its fair key. Producers know no
policies. They read this document when they store a message for later.
"""

from __future__ import annotations

import json
import time
from typing import NamedTuple

from retry_topic.message import Message
from retry_topic.policy import PolicySet
from retry_topic.policy.fair import key_of, settings_of
from retry_topic.policy.key_source import parse_key_source
from wheel_sched.errors import ConfigError
from wheel_sched.escaping import logger_of
from wheel_sched.store import DelayStore, Documents
from wheel_sched.store.fair_shares import FairShares, fair_ref

logger = logger_of("retry_topic.fair")

RULES = "fair-keys"  # name of the collection of documents, one `KeyRule` for each topic
_READ_EVERY_S = 10.0
_MOST_TOPICS = 1000  # greatest number of topics whose rules a producer remembers


def share_topics(store: DelayStore, policies: PolicySet, *, by_key: bool) -> None:
    """Make topics fair if their policies say so. The other topics of the policies are no longer fair.

    Topics without a policy of their own do not change. Costs one round trip when no topic is fair. A producer knows the
    new rule of a topic within 10 s.

    Args:
        store: the store.
        policies: the policies of the service.
        by_key: whether all messages of a fair key lie in one shard, if the topic has limits for each key.

    Raises:
        StoreError: the store does not answer; some topics may have their new settings.
    """
    shares, rules = FairShares(store), Documents(store)
    before = set(shares.topics())
    for topic, policy in policies.topics.items():
        fair = policy.fair
        if fair is not None:
            settings = settings_of(fair, policy.rate, policy.burst, store.shards, by_key=by_key and fair.capped)
            shares.configure(topic, settings)
            rules.put(RULES, topic, KeyRule(fair.key, by_key and fair.capped).stored())
            logger.info("fair.shared: topic '%.100s' shares its due messages by %.100s", topic, fair.key)
        elif topic in before:
            shares.configure(topic, None)
            rules.remove(RULES, topic)
            logger.info("fair.not_shared: topic '%.100s' releases its due messages by due time", topic)


class KeyRule(NamedTuple):
    """Where the messages of a topic have their fair key, and whether all messages of a key lie in one shard."""

    key: str
    in_one_shard: bool

    def stored(self) -> bytes:
        """The rule as JSON: the value of the document in which the store keeps it."""
        return json.dumps(self._asdict()).encode()

    @classmethod
    def read(cls, value: bytes) -> KeyRule | None:
        """Read a topic's rule from the value of its stored document; None if this version cannot read it."""
        try:
            found = json.loads(value)
            return cls(str(parse_key_source(found["key"])), found["in_one_shard"] is True)
        except (ValueError, KeyError, TypeError, ConfigError):
            return None


class FairKeys:
    """Finds the fair keys of messages that are stored for later. Any thread may use it.

    It reads the rule of a topic from the store, at most once in 10 s.

    Args:
        store: the store that holds the rules and the items.
    """

    def __init__(self, store: DelayStore) -> None:
        self._documents = Documents(store)
        self._routed = store.shards > 1
        self._rules: dict[str, tuple[float, KeyRule | None]] = {}  # topic -> (when it was read, rule)

    def place_of(self, message: Message, fair_key: str | bytes | None = None) -> tuple[tuple[str, ...], str | None]:
        """The refs and the route of an item of this message, see `Fair.place_of`.

        `fair_key`: the message's fair key. Defaults to None: the topic's `KeyRule` says where the message has its key.

        Raises:
            StoreError: the store does not answer.
        """
        rule = self._rule_of(message.topic)
        if fair_key is None:
            if rule is None:
                return (), None
            fair_key = key_of(rule.key, message)
        ref = fair_ref(fair_key)
        return (ref,), ref if rule is not None and rule.in_one_shard and self._routed else None

    def _rule_of(self, topic: str) -> KeyRule | None:
        now_s = time.monotonic()
        known = self._rules.get(topic)
        if known is None or now_s - known[0] >= _READ_EVERY_S:
            (document,) = self._documents.get(RULES, [topic])
            if len(self._rules) >= _MOST_TOPICS:
                self._rules.clear()
            known = self._rules[topic] = now_s, None if document is None else KeyRule.read(document.value)
        return known[1]

"""Fair topics: tells the store which topics of a service share their due messages between keys.

The settings lie in the store, so every dispatcher of the namespace keeps to them. The last service that has started
decides. All services of a namespace must use the same policies.
"""

from __future__ import annotations

from retry_topic.policy import PolicySet
from retry_topic.policy.fair import settings_of
from wheel_sched.escaping import logger_of
from wheel_sched.store import DelayStore
from wheel_sched.store.fair_shares import FairShares

logger = logger_of("retry_topic.fair")


def share_topics(store: DelayStore, policies: PolicySet, *, by_key: bool) -> None:
    """Make the topics fair whose policy says so. End it for topics of the policies that were fair before.

    Topics without a policy of their own do not change. Costs one round trip when no topic is fair.

    Args:
        store: the store.
        policies: the policies of the service.
        by_key: whether all messages of a fair key whose number is limited lie in one shard.

    Raises:
        StoreError: the store does not answer; some topics may have their new settings.
    """
    shares = FairShares(store)
    before = set(shares.topics())
    for topic, policy in policies.topics.items():
        fair = policy.fair
        if fair is not None:
            settings = settings_of(fair, policy.rate, policy.burst, store.shards, by_key=by_key and fair.capped)
            shares.configure(topic, settings)
            logger.info("fair.shared: topic '%.100s' shares its due messages by %.100s", topic, fair.key)
        elif topic in before:
            shares.configure(topic, None)
            logger.info("fair.not_shared: topic '%.100s' releases its due messages by due time", topic)

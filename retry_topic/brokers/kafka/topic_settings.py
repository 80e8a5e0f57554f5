"""The default settings with which a group's topics are created, by purpose."""

from __future__ import annotations

_DAY_MS = 86_400_000
_KEEP_MS = {"retry": 7 * _DAY_MS, "redelivery": 7 * _DAY_MS, "dead": 30 * _DAY_MS}
# The largest message that our producers send. With the cluster's own limit, a retry topic would refuse a message that
# just fitted into its original topic, because the message has more headers now. Most hosted clusters allow no more.
LARGEST_BYTES = 8 * 1024 * 1024


def settings_for(kind: str, replication: int) -> dict[str, str]:
    """Settings of a group's "retry", "redelivery" or "dead" topic with `replication` copies, -1: the cluster's default.

    Records are deleted by age and never compacted, independently of the cluster's default, because messages with equal
    keys are different messages. With several copies, one broker may be down, and all brokers in sync have every
    confirmed record.
    """
    settings = {
        "cleanup.policy": "delete",
        "retention.ms": str(_KEEP_MS[kind]),
        "max.message.bytes": str(LARGEST_BYTES),
    }
    if replication > 1:
        settings["min.insync.replicas"] = str(min(2, replication - 1))
    return settings

"""Names of the topics a consumer group owns."""

from __future__ import annotations

from wheel_sched.errors import ConfigError


def check_group(group: str) -> str:
    """The group, when topics can be named after it."""
    if not group or len(group) > 200 or any(c.isspace() or c in "\0{}" for c in group):
        raise ConfigError(f"expected group to be 1 to 200 characters without blanks or braces, got: {group!r}")
    return group


def retry_topic_of(group: str) -> str:
    """Where the group's consumers put what failed."""
    return f"{check_group(group)}.retry"


def redelivery_topic_of(group: str) -> str:
    """Where due retries come back for this group alone, so that other groups of a topic are not disturbed."""
    return f"{check_group(group)}.redelivery"


def dead_topic_of(group: str) -> str:
    """Where messages go that are given up."""
    return f"{check_group(group)}.dead"


def intake_group_of(group: str) -> str:
    """As whom the group's service reads a retry topic that is a log: its coming and going disturbs no consumer."""
    return f"{check_group(group)}.intake"


def source_of(reader: str, topic_id: str, partition: int) -> str:
    """What the store calls a partition of a log that a group reads; a topic made anew has another id."""
    return f"{reader}/{topic_id}/{partition}"

"""Names of the topics that a consumer group owns."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from wheel_sched.errors import ConfigError

_GROUP = re.compile(r"[^\s\0{}]{1,200}")


def check_group(group: str) -> str:
    """Check that topics can be named after `group`, and return it.

    Raises:
        ConfigError: topics cannot have such a name.
    """
    if _GROUP.fullmatch(group) is None:
        raise ConfigError(f"expected group to be 1 to 200 characters without blanks or braces, got: {group!r}")
    return group


def retry_topic_of(group: str) -> str:
    """The topic to which the group's consumers send failed messages."""
    return f"{check_group(group)}.retry"


def redelivery_topic_of(group: str) -> str:
    """The topic on which due retries come back to this group only, unseen by other groups of the original topic."""
    return f"{check_group(group)}.redelivery"


def dead_topic_of(group: str) -> str:
    """The topic that receives dead letters."""
    return f"{check_group(group)}.dead"


@dataclass(frozen=True, slots=True)
class GroupTopics:
    """The names of a group's own topics, for topics that are not named after the group (those of Spring Kafka, say).

    Give all consumers and services of a group the same names. Existing topics keep their settings; absent topics are
    created.

    Args:
        retry: receives failed messages from the group's consumers. Defaults to "": `<group>.retry`.
        redelivery: brings due retries back to this group only. Defaults to "": `<group>.redelivery`.
        dead: receives dead letters. Defaults to "": `<group>.dead`.

    Raises:
        ConfigError: a name is impossible, or two names are equal.
    """

    retry: str = ""
    redelivery: str = ""
    dead: str = ""

    def __post_init__(self) -> None:
        named = {spec.name: getattr(self, spec.name) for spec in fields(self) if getattr(self, spec.name) != ""}
        problems = [
            f"expected the {kind} topic to be 1 to 249 characters without blanks or braces, got: {name!r}"
            for kind, name in named.items()
            if not isinstance(name, str) or len(name) > 249 or any(c.isspace() or c in "\0{}" for c in name)
        ]
        if not problems and len({*named.values()}) < len(named):
            problems.append(f"expected the retry, redelivery and dead topics to be distinct, got: {named}")
        if problems:
            raise ConfigError(problems)

    def retry_of(self, group: str) -> str:
        """The topic to which the group's consumers send failed messages."""
        return self.retry or retry_topic_of(group)

    def redelivery_of(self, group: str) -> str:
        """The topic on which due retries come back to this group only."""
        return self.redelivery or redelivery_topic_of(group)

    def dead_of(self, group: str) -> str:
        """The topic that receives dead letters."""
        return self.dead or dead_topic_of(group)

    def of(self, group: str) -> dict[str, str]:
        """All three topics, by purpose.

        Raises:
            ConfigError: two names are equal: a given name is the default name of another topic.
        """
        check_group(group)
        found = {"retry": self.retry_of(group), "redelivery": self.redelivery_of(group), "dead": self.dead_of(group)}
        if len({*found.values()}) < len(found):
            raise ConfigError(f"expected the retry, redelivery and dead topics to be distinct, got: {found}")
        return found


NAMED_AFTER_GROUP = GroupTopics()


def intake_group_of(group: str) -> str:
    """The group in which the retry service reads a retry topic that is a log.

    It differs from the consumers' group, so consumers see no rebalance when a service starts or stops.
    """
    return f"{check_group(group)}.intake"


def source_of(reader: str, topic_id: str, partition: int) -> str:
    """The store's name for a partition of a log that `reader` reads. A topic that was recreated has another id."""
    return f"{reader}/{topic_id}/{partition}"

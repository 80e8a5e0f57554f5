"""Names of the topics a consumer group owns."""

from __future__ import annotations

from dataclasses import dataclass, fields

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


@dataclass(frozen=True, slots=True)
class GroupTopics:
    """The topics a group owns, where they are not named after it: those of Spring Kafka are used in place.

    Consumers and services of a group must agree. Which of them there are, and how they are set up, is up to whoever
    named them; what is absent is created.

    Args:
        retry: where the group's consumers put what failed. Defaults to "": `<group>.retry`.
        redelivery: where due retries come back for this group alone. Defaults to "": `<group>.redelivery`.
        dead: where messages go that are given up. Defaults to "": `<group>.dead`.

    Raises:
        ConfigError: a name is impossible, or two are the same.
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
        """Where the group's consumers put what failed."""
        return self.retry or retry_topic_of(group)

    def redelivery_of(self, group: str) -> str:
        """Where due retries come back for this group alone."""
        return self.redelivery or redelivery_topic_of(group)

    def dead_of(self, group: str) -> str:
        """Where messages go that are given up."""
        return self.dead or dead_topic_of(group)

    def of(self, group: str) -> dict[str, str]:
        """All three, by what they are for.

        Raises:
            ConfigError: one that was named is another's default.
        """
        check_group(group)
        found = {"retry": self.retry_of(group), "redelivery": self.redelivery_of(group), "dead": self.dead_of(group)}
        if len({*found.values()}) < len(found):
            raise ConfigError(f"expected the retry, redelivery and dead topics to be distinct, got: {found}")
        return found


NAMED_AFTER_GROUP = GroupTopics()


def intake_group_of(group: str) -> str:
    """As whom the group's service reads a retry topic that is a log: its coming and going disturbs no consumer."""
    return f"{check_group(group)}.intake"


def source_of(reader: str, topic_id: str, partition: int) -> str:
    """What the store calls a partition of a log that a group reads; a topic made anew has another id."""
    return f"{reader}/{topic_id}/{partition}"

"""The settings that retry topics add to the command line. Every start of the program imports this module."""

from __future__ import annotations

from dataclasses import dataclass

from wheel_sched.config import Settings, SettingSpec, setting


@dataclass(frozen=True, slots=True)
class RetrySettings(Settings):
    """The settings of the core, and those of retry topics.

    Args:
        prefix: stands before each topic's name in the key of the topic's stream. Defaults to "".
        policies: TOML file of retry policies. Defaults to None: the built-in policy for every topic.
        kafka: host:port,... of the Kafka cluster that has the topics, or a file of client properties (`*.properties`)
            that names `bootstrap.servers`. Defaults to None: topics are streams on the store's server.
        group_protocol: protocol of Kafka's consumer groups, classic or consumer (KIP-848). Defaults to None: that of
            the client properties, else classic.
        transactions: whether Kafka's transactions are used. Without them, due messages are delivered at least once,
            with the headers `retry-id` and `retry-attempt`. Defaults to True.
        secrets: file with a secret in each line. The first secret signs headers. Defaults to None: headers are not
            signed.
        retry_topic: the topic into which a group's consumers put failed messages, for commands about one group.
            Defaults to None: the topic named after the group.
        redelivery_topic: the topic that gets the due retries of that group. Defaults to None: named after the group.
        dead_topic: the topic that gets the dead letters of that group. Defaults to None: named after the group.
    """

    prefix: str = setting("", SettingSpec(may_be_empty=True))
    policies: str | None = setting(None, SettingSpec(file=""))
    kafka: str | None = setting(
        None,
        SettingSpec(
            file=".properties",
            flag_help="Use the topics of a Kafka cluster: its address, or FILE.properties with client settings.",
            metavar="HOST:PORT",
        ),
    )
    group_protocol: str | None = setting(
        None,
        SettingSpec(
            choices=("classic", "consumer"),
            flag_help="Protocol of Kafka's groups; consumer is KIP-848 (default: that of FILE.properties, or classic).",
            metavar="[classic|consumer]",
        ),
    )
    transactions: bool = setting(
        True,
        SettingSpec(
            kind="switch",
            flag_help="Whether to use Kafka's transactions. Without them a message may be delivered twice, with equal "
            "headers retry-id and retry-attempt.",
        ),
    )
    secrets: str | None = setting(
        None,
        SettingSpec(
            file="", flag_help="File of secrets that sign headers, one per line; the first signs.", metavar="FILE"
        ),
    )
    retry_topic: str | None = setting(None, SettingSpec())
    redelivery_topic: str | None = setting(None, SettingSpec())
    dead_topic: str | None = setting(None, SettingSpec())

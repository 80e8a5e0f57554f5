"""Retry topics: failed messages wait in a durable store, come back on time, and become dead letters in the end.

A name is imported at its first use. So a process that needs one part, such as each process that Spark starts, does not
wait for the import of the other parts.
"""

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from retry_topic.connection import Connection, connect
    from retry_topic.consumer import Consumer, ConsumerConfig
    from retry_topic.consumer.outcome import Ack, DeadLetter, Retry
    from retry_topic.dead_letters import DeadLetterFilter, DeadLetterInfo, DeadLetters
    from retry_topic.message import Message, Source
    from retry_topic.message.topic_names import GroupTopics
    from retry_topic.policy import PolicySet, RetryPolicy, load_policies
    from retry_topic.service import RetryService, ServiceConfig

__all__ = [
    "Ack",
    "Connection",
    "Consumer",
    "ConsumerConfig",
    "DeadLetter",
    "DeadLetterFilter",
    "DeadLetterInfo",
    "DeadLetters",
    "GroupTopics",
    "Message",
    "PolicySet",
    "Retry",
    "RetryPolicy",
    "RetryService",
    "ServiceConfig",
    "Source",
    "connect",
    "load_policies",
]

_MODULES = MappingProxyType(
    {
        "consumer": ("Consumer", "ConsumerConfig"),
        "dead_letters": ("DeadLetterInfo", "DeadLetters", "DeadLetterFilter"),
        "connection": ("Connection", "connect"),
        "message": ("Message", "Source"),
        "message.topic_names": ("GroupTopics",),
        "policy": ("PolicySet", "RetryPolicy", "load_policies"),
        "service": ("RetryService", "ServiceConfig"),
        "consumer.outcome": ("Ack", "DeadLetter", "Retry"),
    }
)

if not TYPE_CHECKING:  # a type checker knows the names and reports all others

    def __getattr__(name: str) -> Any:
        for module, names in _MODULES.items():
            if name in names:
                found = globals()[name] = getattr(import_module(f"retry_topic.{module}"), name)
                return found
        raise AttributeError(f"module 'retry_topic' has no attribute {name!r}")

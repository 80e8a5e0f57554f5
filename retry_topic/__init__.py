"""Retry topics: failed messages wait durably, come back on time, are capped and dead-lettered."""

from retry_topic.consumer import Consumer, ConsumerConfig
from retry_topic.dead_letters import DeadLetterInfo, DeadLetters, Selection
from retry_topic.home import Home, connect
from retry_topic.message import Message, Source
from retry_topic.policy import PolicySet, RetryPolicy, load_policies
from retry_topic.service import RetryService, ServiceConfig
from retry_topic.verdict import Ack, DeadLetter, Retry

__all__ = [
    "Ack",
    "Consumer",
    "ConsumerConfig",
    "DeadLetter",
    "DeadLetterInfo",
    "DeadLetters",
    "Home",
    "Message",
    "PolicySet",
    "Retry",
    "RetryPolicy",
    "RetryService",
    "Selection",
    "ServiceConfig",
    "Source",
    "connect",
    "load_policies",
]

"""The consumer hands messages to a handler. No message is lost, even if the handler fails. Read `consumer.py` first."""

from retry_topic.consumer.config import ConsumerConfig, ConsumerStats
from retry_topic.consumer.consumer import Consumer
from retry_topic.consumer.handlers import Handler
from retry_topic.consumer.retry_record import failed_message, retry_state

__all__ = ["Consumer", "ConsumerConfig", "ConsumerStats", "Handler", "failed_message", "retry_state"]

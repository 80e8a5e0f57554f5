"""The consumer runtime: hands messages to a handler and sees that none of them is lost, whatever it does."""

from retry_topic.consumer.config import ConsumerConfig, ConsumerStats
from retry_topic.consumer.failing import failed_message, retry_state
from retry_topic.consumer.runtime import Consumer, Handler

__all__ = ["Consumer", "ConsumerConfig", "ConsumerStats", "Handler", "failed_message", "retry_state"]

"""Kafka: consumer groups, transactions, and what the retry service needs to be exact on both sides of it."""

from retry_topic.brokers.kafka.broker import KafkaBroker

__all__ = ["KafkaBroker"]

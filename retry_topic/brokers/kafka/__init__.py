"""KafkaBroker: topics of a Kafka cluster, consumer groups and transactions."""

from retry_topic.brokers.kafka.broker import KafkaBroker

__all__ = ["KafkaBroker"]

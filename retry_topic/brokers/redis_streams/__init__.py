"""Redis Streams (Redis 7, Valkey 8 and newer) as a broker: a topic is a stream, a group is a consumer group."""

from retry_topic.brokers.redis_streams.broker import RedisStreamsBroker
from retry_topic.message.encoding import from_entry, to_fields

__all__ = ["RedisStreamsBroker", "from_entry", "to_fields"]

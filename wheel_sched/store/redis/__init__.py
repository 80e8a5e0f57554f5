"""The delay store on Redis and Valkey: scripts, connections, and the backends of the blocking and asyncio facades."""

from wheel_sched.store.redis.asyncio_backend import AsyncRedisBackend
from wheel_sched.store.redis.backend import RedisBackend

__all__ = ["AsyncRedisBackend", "RedisBackend"]

"""Performs operations on a Redis or Valkey server from an event loop: the asyncio twin of `RedisBackend`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import redis
import redis.asyncio
from redis.asyncio.cluster import RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from wheel_sched.store.operations import Call
from wheel_sched.store.redis.backend import CLIENT_SETTINGS, bad_url, check_version
from wheel_sched.store.redis.conversation import Dialect, Send, Sleep, by_node
from wheel_sched.store.redis.faults import translate

AsyncClient = redis.asyncio.Redis | RedisCluster


def async_client_for(url: str, **settings: Any) -> redis.asyncio.Redis:
    """The asyncio twin of `client_for`."""
    settings = {**CLIENT_SETTINGS, **settings}
    if url.startswith("unix:"):
        for name in ("socket_connect_timeout", "socket_keepalive"):
            settings.pop(name)
    try:
        client: redis.asyncio.Redis = redis.asyncio.Redis.from_url(url, retry=Retry(NoBackoff(), 0), **settings)
    except (ValueError, TypeError):
        raise bad_url(url) from None  # what it says may quote the password
    return client


class AsyncRedisBackend:
    """Calls in, values out, awaited; one event loop."""

    def __init__(self, client: AsyncClient, dialect: Dialect, *, owns_client: bool = False) -> None:
        self.client = client
        self.dialect = dialect
        self.cluster = isinstance(client, RedisCluster)
        self._owns_client = owns_client

    async def execute(self, calls: Sequence[Call[Any]], now_ms: int | None = None) -> list[Any]:
        """Perform calls, one round trip per node; a value or an exception for each, in order."""
        answers: list[Any] = [None] * len(calls)
        for group in by_node(calls, self.cluster):
            talk = self.dialect.talk([calls[i] for i in group], now_ms)
            replies: list[Any] = []
            try:
                step = next(talk)
                while True:
                    if isinstance(step, Sleep):
                        await asyncio.sleep(step.seconds)
                        replies = []
                    else:
                        replies = await self._send(step)
                    step = talk.send(replies)
            except StopIteration as end:
                for i, answer in zip(group, end.value, strict=True):
                    answers[i] = answer
        return answers

    async def _send(self, step: Send) -> list[Any]:
        if isinstance(self.client, RedisCluster):
            return [await self._cluster_command(self.client, command, step) for command in step.commands]
        try:
            if len(step.commands) == 1:
                return [await self.client.execute_command(*step.commands[0])]
            async with self.client.pipeline(transaction=False) as pipeline:
                for command in step.commands:
                    pipeline.execute_command(*command)
                return list(await pipeline.execute(raise_on_error=False))
        except (redis.RedisError, OSError) as error:
            return [error] * len(step.commands)

    async def _cluster_command(self, client: RedisCluster, command: tuple[Any, ...], step: Send) -> Any:
        try:
            if step.everywhere:
                replies = [await node.execute_command(*command) for node in client.get_primaries()]
                return replies[0]
            return await client.execute_command(*command)
        except (redis.RedisError, OSError) as error:
            return error

    async def check_server(self) -> None:
        """Refuse a server that is too old."""
        if isinstance(self.client, RedisCluster):
            return
        try:
            check_version(await self.client.info())
        except redis.ResponseError as error:
            if "unknown command" not in str(error).lower():
                raise translate(error) from error
        except (redis.RedisError, OSError) as error:
            raise translate(error) from error

    async def close(self) -> None:
        if self._owns_client:
            await self.client.aclose()

"""Performs operations on a Redis or Valkey server from an event loop: the asyncio twin of `RedisBackend`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

import redis
import redis.asyncio
from redis.asyncio.cluster import PipelineCommand, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from wheel_sched.store.core.call import Call
from wheel_sched.store.redis import faults
from wheel_sched.store.redis.addresses import opened
from wheel_sched.store.redis.backend import (
    CLIENT_SETTINGS,
    check_answers_in_bytes,
    check_version,
    repeats_by_itself,
    reply_timeout_s,
)
from wheel_sched.store.redis.durability import SYNCED
from wheel_sched.store.redis.round_trips import Dialect, Send, Sleep, by_node

AsyncClient = redis.asyncio.Redis | RedisCluster


def async_client_for(url: str, **settings: Any) -> redis.asyncio.Redis:
    """The asyncio twin of `client_for`."""
    settings = {**CLIENT_SETTINGS, **settings}
    if url.startswith("unix:"):
        for name in ("socket_connect_timeout", "socket_keepalive"):
            settings.pop(name)
    return opened(url, lambda: redis.asyncio.Redis.from_url(url, retry=Retry(NoBackoff(), 0), **settings))


class AsyncRedisBackend:
    """Performs the calls of an `AsyncDelayStore` on a server, on one event loop."""

    def __init__(self, client: AsyncClient, dialect: Dialect, *, owns_client: bool = False) -> None:
        check_answers_in_bytes(client)
        self.client = client
        self.dialect = dialect
        self.cluster = isinstance(client, RedisCluster)
        dialect.client_repeats = repeats_by_itself(client)
        dialect.level = dialect.level.within(reply_timeout_s(client))
        self._owns_client = owns_client

    async def execute(self, calls: Sequence[Call[Any]], now_ms: int | None = None) -> list[Any]:
        """Perform calls; without a cluster mostly in one round trip. Returns a value or an exception for each."""
        answers: list[Any] = [None] * len(calls)
        for group in by_node(calls, self.cluster):
            trips = self.dialect.round_trips([calls[i] for i in group], now_ms)
            replies: list[Any] = []
            try:
                step = next(trips)
                while True:
                    if isinstance(step, Sleep):
                        await asyncio.sleep(step.seconds)
                        replies = []
                    else:
                        replies = await self._send(step)
                    step = trips.send(replies)
            except StopIteration as end:
                for i, answer in zip(group, end.value, strict=True):
                    answers[i] = answer
        return answers

    async def _send(self, step: Send) -> list[Any]:
        try:
            if isinstance(self.client, RedisCluster):
                if step.together:
                    return await _on_one_node(self.client, step)
                return [await self._cluster_command(self.client, command, step) for command in step.commands]
            if len(step.commands) == 1:
                return [await self.client.execute_command(*step.commands[0])]
            async with self.client.pipeline(transaction=False) as pipeline:
                for command in step.commands:
                    pipeline.execute_command(*command)
                return list(await pipeline.execute(raise_on_error=False))
        except faults.FAULTS as error:
            return [error] * len(step.commands)

    async def _cluster_command(self, client: RedisCluster, command: tuple[Any, ...], step: Send) -> Any:
        try:
            if step.everywhere:
                replies = [await node.execute_command(*command) for node in client.get_primaries()]
                return replies[0]
            return await client.execute_command(*command)
        except faults.FAULTS as error:
            return error

    async def check_server(self) -> None:
        """Refuse a server that is too old or cannot keep the durability level. Of a cluster, it may ask one node only.

        Raises:
            StoreError: the server is refused; the text says what to change. Nothing was written.
        """
        level = self.dialect.level
        nodes: list[Any] = [self.client]
        if isinstance(self.client, RedisCluster):
            await self._reached(self.client.initialize())
            nodes = list(self.client.get_primaries()) if level.confirms else [self.client.get_default_node()]
        for node in nodes:
            info = await self._info_of(node)
            check_version(info)
            if not level.confirms:
                continue
            settings: Any = {}
            if level.level == "fsync":
                try:
                    settings = await self._reached(node.execute_command("CONFIG", "GET", *SYNCED))
                except redis.ResponseError as error:
                    settings = error
            refusal = level.refusal(info, settings)
            if refusal is not None:
                raise refusal

    async def _info_of(self, node: Any) -> dict[str, Any]:
        try:
            answer = await self._reached(node.execute_command("INFO"))
        except redis.ResponseError as error:
            if "unknown command" in str(error).lower():
                return {}
            raise faults.translate(error) from error
        info: dict[str, Any] = dict(answer)
        return info

    async def _reached(self, call: Awaitable[Any]) -> Any:
        """Await a call of the client. An error reply of the server is raised as it is, other errors are translated."""
        try:
            return await call
        except redis.ResponseError:
            raise
        except faults.FAULTS as error:
            raise faults.translate(error) from error

    async def close(self) -> None:
        if self._owns_client:
            await self.client.aclose()


async def _on_one_node(cluster: RedisCluster, step: Send) -> list[Any]:
    """Send the commands on one connection to the key's node. If the slot has moved, send them to the new node."""
    await cluster.initialize()
    replies = await _in_one_go(cluster, step)
    if not any(faults.moved(reply) for reply in replies):
        return replies
    await cluster.nodes_manager.initialize()
    return await _in_one_go(cluster, step)


async def _in_one_go(cluster: RedisCluster, step: Send) -> list[Any]:
    node: Any = cluster.get_node_from_key(step.key.decode())
    commands = [PipelineCommand(position, *command) for position, command in enumerate(step.commands)]
    await node.execute_pipeline(commands)
    return [command.result for command in commands]

"""Performs operations on a Redis or Valkey server. Its calls block until they end, except `begin`.

Any thread may call the backend, because each call takes a connection of a pool.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import redis
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.retry import Retry
from redis.sentinel import SentinelConnectionPool

from wheel_sched.errors import ConfigError, StoreTooOld, StoreUnavailable
from wheel_sched.escaping import logger_of
from wheel_sched.store.core.call import Call, CompletedCalls, SentCalls
from wheel_sched.store.core.items import Marker
from wheel_sched.store.redis import faults
from wheel_sched.store.redis.addresses import opened
from wheel_sched.store.redis.deferred import DeferredConnection
from wheel_sched.store.redis.durability import SYNCED
from wheel_sched.store.redis.library import shard_keys
from wheel_sched.store.redis.round_trips import Dialect, RoundTrips, Send, Sleep, by_node

logger = logger_of("wheel_sched.store")

Client = redis.Redis | RedisCluster

CLIENT_SETTINGS: dict[str, Any] = {
    "protocol": 2,  # RESP3 is no faster here, and RESP2 is what every proxy speaks
    "socket_timeout": 10,
    "socket_connect_timeout": 5,
    "socket_keepalive": True,
}

IMITATION_BLOCK_MS = 100  # how long a read in fakeredis blocks; nothing can interrupt it


def client_for(url: str, **settings: Any) -> redis.Redis:
    """Make a client that repeats no command by itself: the backend decides which calls may be repeated."""
    settings = {**CLIENT_SETTINGS, **settings}
    if url.startswith("unix:"):
        for name in ("socket_connect_timeout", "socket_keepalive"):
            settings.pop(name)
    return opened(url, lambda: redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0), **settings))


def blocking_twin(client: Client, key: bytes, timeout_s: float) -> redis.Redis:
    """Make a client for blocking reads, with new connections to the server of `key`.

    `timeout_s` must be longer than each read.

    Raises:
        StoreUnavailable: no node of the cluster serves the slot of `key`.
    """
    if isinstance(client, RedisCluster):
        node = client.get_node_from_key(key.decode())
        if node is None or node.redis_connection is None:
            raise StoreUnavailable(f"no cluster node serves {key!r} now: repeat in a moment")
        client = node.redis_connection
    standalone: Any = client
    pool = standalone.connection_pool
    settings = {**pool.connection_kwargs, "socket_timeout": timeout_s, "retry": Retry(NoBackoff(), 0)}
    settings.pop("connection_pool", None)
    if isinstance(pool, SentinelConnectionPool):
        twin = SentinelConnectionPool(pool.service_name, pool.sentinel_manager, is_master=pool.is_master, **settings)
        return redis.Redis(connection_pool=twin)
    pool_class = redis.ConnectionPool
    return redis.Redis(connection_pool=pool_class(connection_class=pool.connection_class, **settings))


class RedisBackend:
    """Performs the calls of a `DelayStore` on a Redis or Valkey server.

    Args:
        client: a client for one server, from Sentinel, or for a cluster. Most calls carry tokens, so the client may
            retry them; the answer to a call without a token may then be that of a repeat.
        dialect: namespace and durability.
        owns_client: whether `close` closes the client. Defaults to False.

    Raises:
        ConfigError: the client decodes its replies.
    """

    def __init__(self, client: Client, dialect: Dialect, *, owns_client: bool = False) -> None:
        check_answers_in_bytes(client)
        self.client = client
        self.dialect = dialect
        self.cluster = isinstance(client, RedisCluster)
        dialect.client_repeats = repeats_by_itself(client)
        dialect.level = dialect.level.within(reply_timeout_s(client))
        self._owns_client = owns_client
        self._deferred: list[DeferredConnection] = []  # free connections for `begin`

    def execute(self, calls: Sequence[Call[Any]], now_ms: int | None = None) -> list[Any]:
        """Perform calls; without a cluster mostly in one round trip. Returns a value or an exception for each."""
        answers: list[Any] = [None] * len(calls)
        for group in by_node(calls, self.cluster):
            trips = self.dialect.round_trips([calls[i] for i in group], now_ms)
            for i, answer in zip(group, self._go_on(trips, None), strict=True):
                answers[i] = answer
        return answers

    def begin(self, calls: Sequence[Call[Any]], now_ms: int | None = None) -> SentCalls:
        """Send at least one call and do not wait. With a cluster, perform the calls at once."""
        if isinstance(self.client, RedisCluster):
            return CompletedCalls(self.execute(calls, now_ms))
        trips = self.dialect.round_trips(calls, now_ms)
        step: Any = next(trips)  # the first step always sends something
        try:
            connection = self._deferred.pop()  # another thread may have taken the last one
        except IndexError:
            connection = DeferredConnection(self.client)
        connection.send(step.commands)
        return _Sent(self, trips, connection)

    def read_replies(self, trips: RoundTrips, connection: DeferredConnection) -> list[Any]:
        """Read the replies to the calls that `begin` sent. Returns a value or an exception for each call, in order."""
        replies = connection.replies()
        self._deferred.append(connection)
        return self._go_on(trips, replies)

    def _go_on(self, trips: RoundTrips, replies: list[Any] | None) -> list[Any]:
        """Run the round trips to their end. `replies`: the replies to the first commands, if already sent."""
        try:
            step = next(trips) if replies is None else trips.send(replies)
            while True:
                if isinstance(step, Sleep):
                    time.sleep(step.seconds)
                    step = trips.send([])
                else:
                    step = trips.send(self._send(step))
        except StopIteration as end:
            answers: list[Any] = end.value
            return answers

    def _send(self, step: Send) -> list[Any]:
        if self.cluster and not step.together:
            return [self._cluster_command(command, step) for command in step.commands]
        client: Any = self.client  # redis-py leaves execute_command unannotated
        try:
            if self.cluster:
                return self._on_one_node(step)
            if len(step.commands) == 1:
                return [client.execute_command(*step.commands[0])]
            return _in_one_go(client, step)
        except faults.FAULTS as error:
            return [error] * len(step.commands)

    def _on_one_node(self, step: Send) -> list[Any]:
        """Send the commands on one connection to the key's node. If the slot has moved, send them to the new node."""
        cluster: Any = self.client
        replies = _in_one_go(cluster.get_redis_connection(cluster.get_node_from_key(step.key.decode())), step)
        if not any(faults.moved(reply) for reply in replies):
            return replies
        cluster.nodes_manager.initialize()
        return _in_one_go(cluster.get_redis_connection(cluster.get_node_from_key(step.key.decode())), step)

    def _cluster_command(self, command: tuple[Any, ...], step: Send) -> Any:
        client: Any = self.client
        try:
            if step.everywhere:
                replies = [node.redis_connection.execute_command(*command) for node in client.get_primaries()]
                return replies[0]
            return client.execute_command(*command)
        except faults.FAULTS as error:
            return error

    def check_server(self) -> None:
        """Refuse a server that is too old or cannot keep the durability level. Of a cluster, it may ask one node only.

        Raises:
            StoreError: the server is refused; the text says what to change. Nothing was written.
        """
        level = self.dialect.level
        for node in self._primaries() if level.confirms else ():
            info = _info_of(node)
            check_version(info)
            settings = _settings_of(node) if level.level == "fsync" else {}
            refusal = level.refusal(info, settings)
            if refusal is not None:
                raise refusal
        if not level.confirms:
            check_version(self.info())

    def _primaries(self) -> list[Any]:
        """A client of each server that takes writes."""
        if isinstance(self.client, RedisCluster):
            return [node.redis_connection for node in self.client.get_primaries()]
        return [self.client]

    def info(self) -> dict[str, Any]:
        """The server's reply to INFO; {} if it has no such command (test doubles)."""
        node: Any = self.client
        if isinstance(self.client, RedisCluster):
            default: Any = self.client.get_default_node()
            node = default.redis_connection
        return _info_of(node)

    def memory(self) -> list[tuple[int, int]]:
        """For each server that takes writes, its used memory and its limit (bytes; 0: no limit), from INFO memory.

        Raises:
            StoreError: a server refuses INFO, or does not answer.
        """
        found = [_info_of(node, "memory") for node in self._primaries()]
        return [(int(info["used_memory"]), int(info.get("maxmemory", 0))) for info in found if "used_memory" in info]

    def identity(self) -> tuple[str, int] | None:
        """(run id, database) of a standalone server; None in a cluster, or if the server does not give its run id."""
        if self.cluster:
            return None
        run_id = self.info().get("run_id")
        db = int(self.client.connection_pool.connection_kwargs.get("db") or 0)  # type: ignore[union-attr]
        return (str(run_id), db) if run_id else None

    def wait_for_mark(self, waiter: redis.Redis, marks: dict[int, bytes], timeout_ms: int) -> dict[int, Marker]:
        """Block until a marker is newer than `marks[shard]`. Returns the newer markers by shard, {} at the timeout.

        Raises:
            StoreError: the connection failed, `interrupt` ended the wait, or the server refused.
        """
        keys = {shard_keys(self.dialect.namespace, shard)[9]: shard for shard in marks}
        streams: dict[Any, Any] = {key: marks[shard] for key, shard in keys.items()}
        if _is_imitation(waiter):
            timeout_ms = min(timeout_ms, IMITATION_BLOCK_MS)
        try:
            reply: Any = waiter.xread(streams, block=timeout_ms)
        except faults.FAULTS as error:
            raise faults.translate(error) from error
        entries = reply.items() if isinstance(reply, dict) else reply or []
        return {keys[key]: _newest(key, rows) for key, rows in entries if rows}

    def waiter(self, shard: int, timeout_ms: int) -> redis.Redis:
        """A new connection for a `wait_for_mark` with this timeout; close it at the end."""
        try:
            return blocking_twin(self.client, shard_keys(self.dialect.namespace, shard)[9], timeout_ms / 1000 + 5)
        except faults.FAULTS as error:  # no node serves the slot now
            raise faults.translate(error) from error

    def interrupt(self, waiter: redis.Redis) -> None:
        """Let a `wait_for_mark` that blocks on `waiter` in another thread raise `StoreUnavailable` at once.

        In an imitation of Redis the wait ends by itself soon.
        """
        pool: Any = waiter.connection_pool
        for connection in [*pool._available_connections, *pool._in_use_connections]:
            sock = getattr(connection, "_sock", None)
            if sock is not None:
                # ValueError: an imitation of Redis is writing an answer; then the read ends by itself
                with contextlib.suppress(OSError, ValueError):
                    sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        while self._deferred:
            self._deferred.pop().close()
        if self._owns_client:
            self.client.close()


def _is_imitation(client: redis.Redis) -> bool:
    """Whether the client is fakeredis, which has no socket that `interrupt` could shut down."""
    kind: Any = client.connection_pool.connection_class
    return str(kind.__module__).partition(".")[0] == "fakeredis"


class _Sent(NamedTuple):
    """The calls that `RedisBackend.begin` has sent."""

    backend: RedisBackend
    trips: RoundTrips
    connection: DeferredConnection

    def answers(self) -> list[Any]:
        return self.backend.read_replies(self.trips, self.connection)


def _newest(key: bytes, rows: Sequence[tuple[bytes, dict[bytes, bytes] | None]]) -> Marker:
    """Make a `Marker` from the newest row of its stream. `due_ms` is None if another program wrote the row."""
    newest, fields = rows[-1]
    due = (fields or {}).get(b"d", b"")
    if due.isdigit() and len(due) <= 15:
        return Marker(newest, int(due))
    logger.warning("store.strange_marker: another program wrote entry %r of %r: its due time is ignored", newest, key)
    return Marker(newest, None)


def check_version(info: dict[str, Any]) -> None:
    """Raise `StoreTooOld` below Redis 7.0 and Valkey 8.0; a server that does not give its version passes."""
    valkey, server = info.get("valkey_version"), info.get("redis_version")
    if valkey is None and server is None:
        return
    version = str(valkey or server)
    least = 8 if valkey else 7
    if int(version.split(".")[0]) < least:
        name = "Valkey" if valkey else "Redis"
        raise StoreTooOld(
            f"the server is {name} {version}; wheel-sched needs Valkey 8 or Redis 7 or newer: nothing was written; "
            "upgrade the server"
        )


def check_answers_in_bytes(client: Any) -> None:
    """Refuse a client that decodes its replies.

    Raises:
        ConfigError: the client decodes its replies; nothing was sent.
    """
    if client.get_encoder().decode_responses:
        raise ConfigError(
            "expected a client that answers in bytes, got one with decode_responses=True: bodies are bytes, not text; "
            "give this store another client, without decode_responses, or a URL; nothing was opened"
        )


def repeats_by_itself(client: Any) -> bool:
    """Whether a client itself repeats a command to which it got no reply."""
    if getattr(client, "nodes_manager", None) is not None:  # a cluster client has its own rules
        return True
    retry = client.connection_pool.connection_kwargs.get("retry")
    return bool(getattr(retry, "_retries", 0))


def reply_timeout_s(client: Any) -> float | None:
    """How long a client waits for a reply; None: for ever."""
    nodes = getattr(client, "nodes_manager", None)
    settings = client.connection_pool.connection_kwargs if nodes is None else nodes.connection_kwargs
    timeout_s = settings.get("socket_timeout")
    return float(timeout_s) if timeout_s else None


def _in_one_go(client: Any, step: Send) -> list[Any]:
    pipeline = client.pipeline(transaction=False)
    for command in step.commands:
        pipeline.execute_command(*command)
    return list(pipeline.execute(raise_on_error=False))


def _info_of(node: Any, *section: str) -> dict[str, Any]:
    try:
        info: dict[str, Any] = node.info(*section)
        return info
    except redis.ResponseError as error:
        if "unknown command" in str(error).lower():
            return {}
        raise faults.translate(error) from error
    except faults.FAULTS as error:
        raise faults.translate(error) from error


def _settings_of(node: Any) -> Any:
    """The server's settings that the level `fsync` needs. If the server refuses to tell them, returns its error."""
    try:
        return node.execute_command("CONFIG", "GET", *SYNCED)
    except redis.ResponseError as error:
        return error
    except faults.FAULTS as error:
        raise faults.translate(error) from error

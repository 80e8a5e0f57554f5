"""The broker's own connections: they return raw bytes, and the client library never repeats a command.

redis-py repeats a command up to 10 times by default. An XADD whose reply was lost is then executed twice. redis-py also
turns entries into dicts, which loses repeated header names. So every client here is a copy of the caller's client with
its address, credentials, TLS and Sentinel, but without repeats and with raw replies in bytes. A blocking read has its
own connection, whose socket timeout is longer than the time that the read may block. In a Cluster there is one client
per node. A call follows a redirection once. After a lost connection the next call asks for the topology again.

Every acknowledged write goes through `write`, which waits as long as the durability level requires. All other commands
(reads, renewals of deliveries, trimming) do not wait: if one is lost, a message is delivered again at worst.

Threads: any thread may call any method. A client from `reader` belongs to one thread.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import count
from typing import Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.crc import key_slot
from redis.exceptions import MovedError, RedisClusterException, RedisError
from redis.retry import Retry
from redis.sentinel import SentinelConnectionPool

from retry_topic.brokers.protocol import BrokerInDoubt
from retry_topic.brokers.redis_streams import faults
from wheel_sched.errors import BrokerError, BrokerUnavailable, ConfigError
from wheel_sched.store.redis.addresses import opened
from wheel_sched.store.redis.backend import reply_timeout_s
from wheel_sched.store.redis.durability import SYNCED, Command, Durability, confirmation_key

T = TypeVar("T")

# The pool keeps these objects of its own among its connection settings. A derived pool makes new ones.
_POOLS_OWN = ("connection_pool", "himport_registry", "event_dispatcher", "cache", "cache_config")
_POOLS_OWN_STARTS = ("maint_", "orig_")


class Connections:
    """The clients with which a broker calls its servers.

    Args:
        client_or_url: a `redis.Redis` (also one made by Sentinel), a `RedisCluster`, or a URL.
        durability: how durable a write must be before it is acknowledged. Defaults to None: "everysec".
    """

    def __init__(self, client_or_url: redis.Redis | RedisCluster | str, durability: Durability | None = None) -> None:
        self._owned = isinstance(client_or_url, str)
        if isinstance(client_or_url, str):
            url = client_or_url
            client_or_url = opened(url, lambda: redis.Redis.from_url(url))
        if not isinstance(client_or_url, redis.Redis | RedisCluster):
            raise ConfigError(
                f"expected client_or_url to be a redis.Redis, a RedisCluster or a URL, got: {client_or_url!r}"
            )
        self._client = client_or_url
        self._cluster = client_or_url if isinstance(client_or_url, RedisCluster) else None
        self._lock = threading.Lock()
        self._derived: dict[str, redis.Redis] = {}
        self._stale = False
        self._closed = False
        self._durability = (Durability() if durability is None else durability).within(reply_timeout_s(client_or_url))
        self._able: set[str] = set()  # servers that support the durability level; each is checked once

    @property
    def is_cluster(self) -> bool:
        return self._cluster is not None

    @property
    def database(self) -> int:
        """The database number of a standalone server."""
        assert not isinstance(self._client, RedisCluster)  # noqa: S101 - the caller has asked `is_cluster`
        return int(self._client.connection_pool.connection_kwargs.get("db") or 0)

    def slot(self, key: str) -> int:
        """The Cluster slot of `key`; 0 on a standalone server, where all keys are together."""
        return int(self._cluster.keyslot(key)) if self._cluster else 0

    def node(self, key: str) -> str:
        """The name of the Cluster node that holds `key`; "" for a standalone server."""
        if self._cluster is None:
            return ""
        if self._stale:
            self._cluster.nodes_manager.initialize()
            self._stale = False
        node: Any = self._cluster.get_node_from_key(key)
        return str(node.name)

    def run(self, key: str, call: Callable[[redis.Redis], T], *, repeat: bool = False) -> T:
        """Perform `call` on the server that holds `key`.

        Args:
            key: any key of the call.
            call: called with the client. It may be called twice: after a redirection, or as `repeat` says.
            repeat: the call is idempotent, so do it once more when its reply was lost. Defaults to False.

        Raises:
            RedisError, OSError: as the client raised it.
        """
        try:
            return call(self._of(key))
        except MovedError:
            self._stale = True
            return call(self._of(key))
        except (*faults.LOST, RedisClusterException) as error:
            self._stale = True
            if not (repeat and faults.is_lost(error)):
                raise
            try:
                return call(self._of(key))
            except faults.LOST as second:
                if faults.is_unsent(second):  # the second call was not sent, but the first may have been executed
                    raise error from second
                raise

    def write(self, key: str, commands: Sequence[Command], *, repeat: bool = False) -> list[Any]:
        """Send commands that write, and wait until their writes have the durability level.

        Args:
            key: any key of the commands. One server holds the keys of all commands.
            commands: they may belong to several slots. A redirection is followed only for a single command.
            repeat: see `run`. Defaults to False.

        Returns:
            For each command its reply or its error: the server's error, or `BrokerInDoubt` for an unconfirmed write.

        Raises:
            RedisError, OSError: as the client raised it.
            BrokerError: the server does not support the durability level; nothing was sent.
        """

        def send(client: redis.Redis) -> list[Any]:
            self._ensure_able(self.node(key), client)
            confirmation = self._durability.confirmation(confirmation_key(tag_of(key)))
            pipeline = client.pipeline(transaction=False)
            for command in (*commands, *confirmation):
                pipeline.execute_command(*command)
            found: list[Any] = pipeline.execute(raise_on_error=False)
            replies = found[: len(commands)]
            if len(replies) == 1 and isinstance(replies[0], MovedError):
                raise replies[0]
            then = "repeat it" if repeat else "a repeat may be a second record"
            doubt = self._durability.doubt(found[len(commands) :], then) if confirmation else None
            if doubt is not None:
                replies = [
                    one if one is None or isinstance(one, Exception) else BrokerInDoubt(str(doubt)) for one in replies
                ]
            return replies

        return self.run(key, send, repeat=repeat)

    def written(self, key: str, *command: bytes | str | int) -> Any:
        """`write` one idempotent command and return its reply. Client errors become broker errors.

        Raises:
            BrokerError: the server refused, could not answer or did not confirm.
        """
        try:
            (reply,) = self.write(key, [command], repeat=True)
        except faults.FAULTS as error:
            raise faults.broker_error(error, "repeatable") from error
        if isinstance(reply, BrokerError):
            raise reply
        if isinstance(reply, Exception):
            raise faults.broker_error(reply, "repeatable") from reply
        return reply

    def repeatable(self, key: str, call: Callable[[redis.Redis], T], *, reads: bool = False) -> T:
        """Perform an idempotent call. Client errors become broker errors. `reads`: the call changes nothing.

        Raises:
            BrokerError: the server refused or could not answer.
        """
        try:
            return self.run(key, call, repeat=True)
        except faults.FAULTS as error:
            raise faults.broker_error(error, "read" if reads else "repeatable") from error

    def reader(self, key: str, timeout_seconds: float) -> redis.Redis:
        """A separate client for blocking reads on the server that holds `key`. `release` it after use."""
        return _derive(self._origin(key), socket_timeout=timeout_seconds)

    def moved(self) -> None:
        """Let the next call ask the Cluster again which node has which slot."""
        self._stale = True

    def close(self) -> None:
        """Close every connection of this object. The caller's own client stays open. Idempotent."""
        with self._lock:
            self._closed = True
            derived, self._derived = list(self._derived.values()), {}
        for client in derived:
            release(client)
        if self._owned:
            self._client.close()

    def __repr__(self) -> str:
        return f"{'cluster' if self._cluster else 'server'}{' closed' if self._closed else ''}"

    def _of(self, key: str) -> redis.Redis:
        name = self.node(key)
        with self._lock:
            if self._closed:
                raise BrokerUnavailable("the Redis Streams broker was closed: nothing was done")
            if name not in self._derived:
                self._derived[name] = _derive(self._origin(key))
            return self._derived[name]

    def _ensure_able(self, server: str, client: redis.Redis) -> None:
        """Ask a server, the first time only, whether it supports the durability level. Raises BrokerError if not."""
        if not self._durability.confirms or server in self._able:
            return
        info: Any = client.info()
        try:
            settings: Any = client.execute_command("CONFIG", "GET", *SYNCED)
        except redis.ResponseError as error:
            settings = error
        refusal = self._durability.refusal(info, settings)
        if refusal is not None:
            raise (BrokerUnavailable if refusal.transient else BrokerError)(str(refusal)) from refusal
        self._able.add(server)

    def _origin(self, key: str) -> redis.Redis:
        if self._cluster is None:
            assert isinstance(self._client, redis.Redis)  # noqa: S101 - either one or the other, see __init__
            return self._client
        node: Any = self._cluster.get_node_from_key(key)
        return self._cluster.get_redis_connection(node)


@lru_cache(maxsize=1024)
def tag_of(key: str) -> str:
    """The hash tag that another key must contain, as `{tag}`, to lie in the same hash slot as `key`."""
    start = key.find("{")
    end = key.find("}", start + 1)
    if start >= 0 and end > start + 1:
        return key[start + 1 : end]
    if "}" not in key:
        return key
    slot = key_slot(key.encode())  # `key` has no tag and cannot be one: search for a number of the same slot
    return next(tag for tag in map(str, count()) if key_slot(tag.encode()) == slot)


def release(client: redis.Redis) -> None:
    """Close a client that `Connections` has made, and its connections."""
    with contextlib.suppress(RedisError, OSError):  # a failed close leaves the client unused as well
        client.close()
        client.connection_pool.disconnect()


def _derive(origin: redis.Redis, **changes: Any) -> redis.Redis:
    pool = origin.connection_pool
    settings: dict[str, Any] = {
        name: value
        for name, value in pool.connection_kwargs.items()
        if name not in _POOLS_OWN and not name.startswith(_POOLS_OWN_STARTS)
    }
    settings |= {"retry": Retry(NoBackoff(), 0), "retry_on_error": [], "decode_responses": False, "protocol": 2}
    settings |= changes
    derived: redis.ConnectionPool
    if isinstance(pool, SentinelConnectionPool):
        settings |= {"connection_class": pool.connection_class, "is_master": pool.is_master}
        derived = SentinelConnectionPool(pool.service_name, pool.sentinel_manager, **settings)
    else:
        derived = redis.ConnectionPool(connection_class=pool.connection_class, **settings)
    client = redis.Redis(connection_pool=derived)
    client.set_response_callback("XREADGROUP", lambda reply, **_: reply)
    return client

"""RedisStreamsBroker: topics as Redis or Valkey streams. The module `consumer` reads, and `publisher` writes.

Retention: XACK alone settles a delivery. Deleting the entry (XDEL), or a length limit at XADD, would take the entry
from groups that have not read it. With `maxlen` the consumers trim a topic to about that length. They drop the oldest
entries first, but never an entry that some group has not settled. A topic that no group reads is trimmed only by `trim`
(the intake calls it for the dead topic). A group without consumers holds back trimming until XGROUP DESTROY removes the
group. A group that joins later reads the remaining entries.

Threads: any thread may call any method.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from retry_topic.brokers.protocol import Backlog, PublishFailure, joining
from retry_topic.brokers.redis_streams import faults, scripts
from retry_topic.brokers.redis_streams.connections import Connections
from retry_topic.brokers.redis_streams.consumer import RedisStreamsConsumer
from retry_topic.brokers.redis_streams.publisher import StreamPublisher, topic_problem
from retry_topic.message.encoding import from_entry
from wheel_sched.errors import ConfigError
from wheel_sched.store.redis.durability import Durability

if TYPE_CHECKING:
    import redis
    from redis.cluster import RedisCluster

    from retry_topic.message import Message

_COUNTED = 1_000  # at most this many entries are counted one by one when the server does not know the lag


class RedisStreamsBroker:
    """Publish to and consume from streams.

    Args:
        client_or_url: a `redis.Redis` (one made by Sentinel too), a `RedisCluster`, or a URL. The broker copies a
            client's address, credentials and TLS settings. It opens its own connections and never closes the client.
        prefix: the key of a topic is `prefix` + its name. With `{tag}:` all topics are on one slot of a Cluster. Then
            `forward` is atomic, and a consumer of several topics waits without polling. Defaults to "".
        create_topics: publishing to an absent topic creates it instead of failing. Defaults to False.
        maxlen: about how many records of a topic stay after every group has settled them (0 for none). Unsettled
            records always stay. Defaults to None (all stay).
        durability: how durable a write must be before it is acknowledged; the same levels as for a store, see
            docs/guarantees.md. Defaults to "everysec".
        replicas: how many replicas confirm under "replicated". Defaults to 1.
    """

    name = "redis-streams"

    def __init__(
        self,
        client_or_url: redis.Redis | RedisCluster | str,
        *,
        prefix: str = "",
        create_topics: bool = False,
        maxlen: int | None = None,
        durability: str = "everysec",
        replicas: int = 1,
    ) -> None:
        if maxlen is not None and maxlen < 0:
            raise ConfigError(f"expected maxlen to be None or 0 and more, got: {maxlen!r}")
        self.durability = Durability(durability, replicas)
        self._connections = Connections(client_or_url, self.durability)
        self.prefix = prefix
        self.create_topics = create_topics
        self._publisher = StreamPublisher(self._connections, prefix, create_topics)
        self._maxlen = maxlen
        self._consumers: weakref.WeakSet[RedisStreamsConsumer] = weakref.WeakSet()

    def stream_key(self, topic: str) -> str:
        """The key of the stream that holds `topic`."""
        return self._publisher.stream_key(topic)

    def publish(self, messages: Sequence[Message]) -> list[PublishFailure | None]:
        """Append each message to its topic. Returns one answer for each message: None when done, else the failure.

        Raises:
            BrokerUnavailable: the server does not answer. With `in_doubt` the topics may already have the messages;
                publishing them again may then make second records.
            BrokerError: the server lacks the durability level or a permission for the list of topics. Nothing was sent.
        """
        return self._publisher.publish(messages)

    def publish_fields(self, entries: Sequence[tuple[str, list[bytes]]]) -> list[PublishFailure | None]:
        """Publish pairs of a topic and a flat list of fields and values. Implements `FieldsBroker.publish_fields`."""
        return self._publisher.publish_fields(entries)

    def publish_once(self, message: Message, message_id: str, window_ms: int) -> PublishFailure | None:
        """Publish a message, unless the topic got one with this id within `window_ms`. Returns its failure or None."""
        return self._publisher.publish_once(message, message_id, window_ms)

    def consumer(self, topics: Sequence[str], group: str, *, idle_ms: int = 30_000) -> RedisStreamsConsumer:
        """Join `group` on `topics`, which are created when absent. A new group starts at the beginning of each.

        Raises:
            ConfigError: an argument is wrong.
            BrokerError: the server refused or could not answer.
        """
        names = joining(topics, group, idle_ms)
        problems = [problem for problem in map(topic_problem, names) if problem]
        if problems:
            raise ConfigError(problems)
        consumer = RedisStreamsConsumer(self._connections, self._publisher, names, group, idle_ms, self._maxlen)
        self._consumers.add(consumer)
        return consumer

    def topic_problem(self, topic: str) -> str | None:
        """Why a topic cannot have this name; None if it can. Implements `NamesBroker.topic_problem`."""
        return topic_problem(topic)

    def create_topic(self, topic: str) -> None:
        """Create `topic` when it is absent.

        Raises:
            ConfigError: a topic cannot have this name.
            BrokerError: the server refused or could not answer.
        """
        problem = topic_problem(topic)
        if problem:
            raise ConfigError(problem)
        stream = self.stream_key(topic)
        try:
            scripts.create(self._connections, stream)
        except faults.FAULTS as error:
            raise faults.broker_error(error, "repeatable") from error
        self._publisher.forget(topic)
        self._publisher.register([topic])

    def topics(self) -> dict[str, int]:
        """The topics that a broker with this prefix has created or consumed, and the number of entries of each."""
        registry = self._publisher.registry
        members: Any = self._connections.repeatable(registry, lambda client: client.smembers(registry), reads=True)
        lengths = {topic: self._length(topic) for topic in sorted(member.decode() for member in members)}
        return {topic: length for topic, length in lengths.items() if length is not None}

    def backlog(self, topic: str, group: str) -> Backlog:
        """The records of `topic` that `group` has not settled. Implements `BacklogBroker.backlog`.

        Cost: about five small commands. If the server does not know how many entries are new to the group (entries were
        deleted), this method reads them and counts at most 1,000.
        """
        stream = self.stream_key(topic)
        return self._connections.repeatable(stream, lambda client: _backlog(client, stream, topic, group), reads=True)

    def reads(self, group: str, topic: str) -> bool:
        """Whether `group` reads `topic`: the topic is registered, and its stream has that group.

        Raises:
            BrokerError: the server could not answer.
        """
        if topic_problem(topic):
            return False
        registry, stream = self._publisher.registry, self.stream_key(topic)
        if not self._connections.repeatable(registry, lambda client: client.sismember(registry, topic), reads=True):
            return False

        def names(client: redis.Redis) -> list[Any]:
            found: Any = client.execute_command("TYPE", stream)
            if found not in (b"stream", "stream"):
                return []
            groups: Any = client.xinfo_groups(stream)
            return [row["name"] for row in groups]

        return group.encode() in self._connections.repeatable(stream, names, reads=True)

    def trim(self, topic: str, keep: int) -> int:
        """Drop the oldest entries beyond about `keep`, as far as every group has settled them. Returns their number.

        More than `keep` may stay, because the server drops whole nodes of a stream. Implements `TrimBroker.trim`.
        """
        stream = self.stream_key(topic)
        return self._connections.repeatable(stream, lambda client: scripts.trim(client, stream, keep, unread=True))

    def server_identity(self) -> tuple[str, int] | None:
        """The run id and the database of a standalone server. None for a Cluster, or if the run id is not known.

        If the delay store has the same identity, one script can claim and publish.

        Raises:
            BrokerError: the server could not answer.
        """
        if self._connections.is_cluster:
            return None
        try:
            info: Any = self._connections.run("", lambda client: client.info("server"), repeat=True)
        except ResponseError:  # INFO is not permitted
            return None
        except faults.FAULTS as error:
            raise faults.broker_error(error, "read") from error
        run_id = info.get("run_id")
        return (str(run_id), self._connections.database) if run_id else None

    def close(self) -> None:
        """Close the broker's consumers and connections. The caller's client stays open. Idempotent."""
        for consumer in list(self._consumers):
            consumer.close()
        self._connections.close()

    def __repr__(self) -> str:
        return f"<RedisStreamsBroker {self._connections!r} prefix={self._publisher.prefix!r} maxlen={self._maxlen}>"

    def _length(self, topic: str) -> int | None:
        """How many entries a topic holds; None if its stream is gone."""
        stream = self.stream_key(topic)

        def ask(client: redis.Redis) -> tuple[int, int]:
            pipeline = client.pipeline(transaction=False)
            pipeline.exists(stream)
            pipeline.xlen(stream)
            exists, length = pipeline.execute(raise_on_error=False)
            if isinstance(exists, Exception):
                raise exists
            if isinstance(length, Exception):
                if faults.code(length) == "WRONGTYPE":
                    return 0, 0  # a key of another type is no topic; it must not make the whole listing fail
                raise length
            return exists, length

        exists, length = self._connections.repeatable(stream, ask, reads=True)
        return length if exists else None


if TYPE_CHECKING:
    import redis


def _backlog(client: redis.Redis, stream: str, topic: str, group: str) -> Backlog:
    """Count the entries of a stream that a group has not settled, without joining the group or changing anything."""
    if not client.exists(stream):
        return Backlog(0, None, None)
    rows: Any = client.execute_command("XINFO", "GROUPS", stream)
    found = next((row for row in map(_as_dict, rows) if row["name"] == group.encode()), None)
    if found is None:
        fresh: int | None = int(client.xlen(stream))
        pending, start = 0, "-"
    else:
        fresh, pending = found.get("lag"), int(found["pending"])
        start = f"({found['last-delivered-id'].decode()}"
    if fresh is None:  # the server cannot compute the lag: entries were deleted
        counted: Any = client.execute_command("XRANGE", stream, start, "+", "COUNT", _COUNTED)
        fresh = len(counted)
    entries: Any = client.execute_command("XRANGE", stream, start, "+", "COUNT", 1) if fresh else []
    if pending and not entries:
        summary: Any = client.xpending(stream, group)
        entries = client.execute_command("XRANGE", stream, summary["min"], "+", "COUNT", 1)
    members: Any = client.execute_command("XINFO", "CONSUMERS", stream, group) if found is not None else []
    silent_ms = min((int(_as_dict(member)["idle"]) for member in members), default=None)
    oldest = from_entry(topic, *_entry(entries[0])) if entries else None
    return Backlog(fresh + pending, oldest, silent_ms)


def _entry(entry: Any) -> tuple[bytes, list[bytes]]:
    entry_id, fields = entry
    if isinstance(fields, dict):
        fields = [part for pair in fields.items() for part in pair]
    return entry_id, fields or []


def _as_dict(row: Any) -> dict[str, Any]:
    """A row of XINFO as a dict. Some clients return a dict, others a flat list."""
    pairs = row.items() if isinstance(row, dict) else zip(row[::2], row[1::2], strict=True)
    return {name.decode() if isinstance(name, bytes) else name: value for name, value in pairs}

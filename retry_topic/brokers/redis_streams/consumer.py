"""RedisStreamsConsumer: one member of a consumer group on streams.

Invariant: an entry that the group has read and not settled is in the group's list of pending entries, assigned to
exactly one member. `beat` renews this assignment. A member takes over entries that were not renewed for `idle_ms`. The
server measures this time, so the members' clocks do not matter.

Reading: the member first looks for entries to take over, every quarter of `idle_ms` and at least every 5 s. Then it
waits for new entries in XREADGROUP on its own connection. In a Cluster, one command cannot wait for topics on several
slots. The member then asks the slots in turn and waits up to 50 ms for each.

Threads: one calls `poll`, and another may call `ack` and `forward` meanwhile. Any thread may call `beat`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from retry_topic.brokers.protocol import Delivery, PublishFailure
from retry_topic.brokers.redis_streams import faults, scripts
from retry_topic.brokers.redis_streams.connections import Connections, release
from retry_topic.brokers.redis_streams.publisher import Handle, StreamPublisher, StreamSettler, by_stream
from retry_topic.message import Message
from retry_topic.message.encoding import from_entry
from wheel_sched.errors import BrokerError, BrokerUnavailable

if TYPE_CHECKING:
    import redis

BLOCK_MS = 5_000  # the longest wait of one read; a dead connection is noticed after this time plus the slack
READ_SLACK_SECONDS = 5.0
TURN_MS = 50  # how long the member waits for one of several slots
REAP_EVERY_SECONDS = 600.0
REAP_IDLE_MS = 3_600_000  # a member silent for an hour counts as dead; if it lives, its next read adds it again
START = b"0-0"


class RedisStreamsConsumer:
    """A group member, made by `RedisStreamsBroker.consumer`. Its `name` in the group is `host-pid-random`."""

    def __init__(
        self,
        connections: Connections,
        publisher: StreamPublisher,
        topics: tuple[str, ...],
        group: str,
        idle_ms: int,
        maxlen: int | None,
    ) -> None:
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._connections = connections
        self._publisher = publisher
        self._settler = StreamSettler(connections, publisher, group, maxlen)
        self._topics = {publisher.stream_key(topic): topic for topic in topics}
        self._group = group
        self._idle_ms = idle_ms
        self._sweep_every_seconds = min(max(idle_ms // 4, 10), BLOCK_MS) / 1000
        self._sweep_at = time.monotonic()
        self._cursors = dict.fromkeys(self._topics, START)  # streams to search for entries to take over, and from where
        self._reap_at = time.monotonic() + REAP_EVERY_SECONDS
        slots: dict[int, list[str]] = {}
        for stream in self._topics:
            slots.setdefault(connections.slot(stream), []).append(stream)
        self._routes = list(slots.values())  # the streams that one XREADGROUP can wait for
        self._readers: dict[str, redis.Redis] = {}  # the key is the first stream of a route
        self._spare: list[Delivery] = []  # entries that were read beyond a caller's limit, for the next poll
        self._closed = False
        self._join()

    def poll(self, limit: int, timeout_ms: int) -> list[Delivery]:
        """Up to `limit` deliveries. Waits up to `timeout_ms`.

        Every quarter of `idle_ms`, at least every 5 s, deliveries without a `beat` for `idle_ms` come before new ones.

        Raises:
            BrokerUnavailable: the server does not answer: poll again. Or this consumer was closed: make another.
            BrokerError: the server refused.
        """
        if self._closed:
            raise BrokerUnavailable("this consumer was closed: nothing was read")
        until = time.monotonic() + timeout_ms / 1000
        try:
            while limit > 0:
                taken = self._take_spare(limit) or self._orphans(limit) or self._fresh(limit, until)
                if taken:
                    return taken
                if time.monotonic() >= until:
                    self._tidy()
                    break
        except faults.FAULTS as error:
            self._release_readers()
            self._connections.moved()
            raise faults.broker_error(error, "repeatable") from error
        return []

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Settle deliveries. Repeating the call is harmless, also after an error."""
        self._settler.ack(deliveries)

    def forward(self, pairs: Sequence[tuple[Delivery, Message]]) -> list[PublishFailure | None]:
        """Publish each message and settle its delivery. The message of a settled delivery is not published again.

        If source and target are on one server (in a Cluster: on one slot), both happen in one step. Otherwise this
        method publishes first and settles afterwards. The caller may repeat the same call after a failure `in_doubt`.
        """
        return self._settler.forward(pairs)

    def beat(self, deliveries: Sequence[Delivery]) -> None:
        """Renew the deliveries that this member still holds. Call it every third of `idle_ms`. Any thread may call it.

        A delivery that was not renewed for `idle_ms` stays as it is: other members may take it over.
        """
        for stream, ids in by_stream(deliveries).items():
            self._still_own(stream, ids)

    def close(self) -> None:
        """Leave the group. Other members get the unsettled deliveries after `idle_ms`. Idempotent."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(BrokerError, *faults.FAULTS):  # closing works without the server as well
            self._reap(0, only=self.name)
            self._settler.trim()
        self._release_readers()

    def __repr__(self) -> str:
        topics = list(self._topics.values())
        return f"<RedisStreamsConsumer {self.name} group={self._group!r} topics={topics} idle_ms={self._idle_ms}>"

    # Joining and leaving

    def _join(self) -> None:
        for stream in self._topics:
            self._create_group(stream)
        self._publisher.register(self._topics.values())

    def _create_group(self, stream: str) -> None:
        try:
            (reply,) = self._connections.write(
                stream, [("XGROUP", "CREATE", stream, self._group, "0", "MKSTREAM")], repeat=True
            )
        except faults.FAULTS as error:
            raise faults.broker_error(error, "repeatable") from error
        if isinstance(reply, BrokerError):
            raise reply
        if isinstance(reply, Exception) and faults.code(reply) != "BUSYGROUP":  # BUSYGROUP: the group exists
            raise faults.broker_error(reply, "repeatable") from reply

    def _rejoin_if_gone(self, error: ResponseError) -> None:
        """Join again if the stream or its group is gone (deleted, or lost by the server); else raise `error`."""
        if faults.code(error) not in ("NOGROUP", "UNBLOCKED"):
            raise error
        self._join()

    def _reap(self, idle_ms: int, only: str = "") -> int:
        """Remove the group's members, or only the member `only`, that hold nothing and were silent for `idle_ms`.

        Returns the number of removals in all streams.
        """
        reap, run = partial(scripts.reap, group=self._group, idle_ms=idle_ms, only=only), self._connections.run
        return sum(run(stream, partial(reap, stream=stream), repeat=True) for stream in self._topics)

    def _tidy(self) -> None:
        """Trim the streams. Every 10 minutes also remove members that ended without leaving the group."""
        self._settler.trim()
        if time.monotonic() >= self._reap_at:
            self._reap_at = time.monotonic() + REAP_EVERY_SECONDS
            self._reap(max(REAP_IDLE_MS, 10 * self._idle_ms))

    # Reading: each of these returns deliveries or none.

    def _take_spare(self, limit: int) -> list[Delivery]:
        spare, self._spare = self._spare[:limit], self._spare[limit:]
        own: set[Handle] = set()  # other members may have taken some of these over meanwhile
        for stream, ids in by_stream(spare).items():
            own |= {(stream, entry_id) for entry_id in self._still_own(stream, ids)}
        return [delivery for delivery in spare if delivery.handle in own]

    def _still_own(self, stream: str, ids: list[bytes]) -> set[bytes]:
        return self._connections.repeatable(
            stream, lambda client: scripts.beat(client, stream, self._group, self.name, self._idle_ms, ids)
        )

    def _orphans(self, limit: int) -> list[Delivery]:
        if time.monotonic() < self._sweep_at:
            return []
        taken: list[Delivery] = []
        for stream, cursor in list(self._cursors.items()):
            if len(taken) == limit:
                return taken
            following, entries = self._reclaim(stream, cursor, limit - len(taken))
            taken += (self._delivery(stream, entry_id, fields, count) for entry_id, fields, count in entries)
            if following == START:
                del self._cursors[stream]
            else:
                self._cursors[stream] = following
        if not self._cursors:  # all streams were searched
            self._cursors = dict.fromkeys(self._topics, START)
            self._sweep_at = time.monotonic() + self._sweep_every_seconds
        return taken

    def _reclaim(self, stream: str, cursor: bytes, limit: int) -> tuple[bytes, list[scripts.Entry]]:
        try:
            return self._connections.run(
                stream,
                lambda client: scripts.reclaim(client, stream, self._group, self.name, self._idle_ms, cursor, limit),
            )
        except ResponseError as error:
            self._rejoin_if_gone(error)
            return START, []

    def _fresh(self, limit: int, until: float) -> list[Delivery]:
        now = time.monotonic()
        wait_ms = int(min(until - now, self._sweep_at - now, BLOCK_MS / 1000) * 1000)
        if len(self._routes) == 1:
            return self._read(self._routes[0], limit, wait_ms)
        self._routes.append(self._routes.pop(0))  # so that a busy slot does not starve the others
        taken: list[Delivery] = []
        for route in self._routes:
            taken += self._read(route, limit - len(taken), 0)
        return taken or self._read(self._routes[0], limit, min(wait_ms, TURN_MS))

    def _read(self, route: list[str], limit: int, block_ms: int) -> list[Delivery]:
        """New entries of streams that are on one slot. COUNT limits each stream, so each stream gets an equal share.

        If some streams have fewer entries than their share, the other streams divide the rest of `limit`.
        """
        taken: list[Delivery] = []
        streams = route
        while streams and len(taken) < limit:
            share = -(-(limit - len(taken)) // len(streams))
            found = self._read_group(self._reader(route[0]), streams, share, block_ms)
            for stream, entries in found:
                taken += (self._delivery(stream, entry_id, fields, 1) for entry_id, fields in entries)
            streams = [stream for stream, entries in found if len(entries) == share]
            block_ms = 0
        self._spare += taken[limit:]
        return taken[:limit]

    def _read_group(
        self, reader: redis.Redis, streams: list[str], count: int, block_ms: int
    ) -> list[tuple[str, list[Any]]]:
        block = ("BLOCK", block_ms) if block_ms > 0 else ()  # BLOCK 0 would wait for ever
        command = ("XREADGROUP", "GROUP", self._group, self.name, "COUNT", count, *block, "STREAMS", *streams)
        try:
            reply: Any = reader.execute_command(*command, *(">" for _ in streams))
        except ResponseError as error:
            self._rejoin_if_gone(error)
            return []
        return [(stream.decode(), entries) for stream, entries in reply or ()]

    def _delivery(self, stream: str, entry_id: bytes, fields: list[bytes], count: int) -> Delivery:
        return Delivery(from_entry(self._topics[stream], entry_id, fields), (stream, entry_id), count)

    def _reader(self, stream: str) -> redis.Redis:
        if stream not in self._readers:
            self._readers[stream] = self._connections.reader(stream, BLOCK_MS / 1000 + READ_SLACK_SECONDS)
        return self._readers[stream]

    def _release_readers(self) -> None:
        readers, self._readers = self._readers, {}
        for reader in readers.values():
            release(reader)

"""The contents of a simulated store that runs the real scripts: on fakeredis, or on a server at a URL.

The namespace has a test clock (`clock=test`): each call carries the virtual time. Two things of a server still follow
the server's own clock, so this module corrects both. The server keeps its answers in case a call is repeated: this
module deletes each answer when it expires in virtual time. The server uses its time as the id of a new marker: this
module replaces the id by a number, as in the memory store, because otherwise two runs of one history would differ.

Each process of the operating system has a namespace of its own, so several processes can use one server.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from wheel_sched.simulation.store_contents import FAKEREDIS, REASONED, KeptItem
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.first_answers import ANSWER_TTL_US
from wheel_sched.store.core.get import Get
from wheel_sched.store.core.items import Marker, decode_text, encode_text
from wheel_sched.store.core.plans import Open
from wheel_sched.store.redis.backend import RedisBackend, client_for
from wheel_sched.store.redis.library import shard_keys
from wheel_sched.store.redis.round_trips import Dialect

if TYPE_CHECKING:
    import redis

NO_MARKER = Marker(b"0-0", -1)
PLACES = ("due", "ready", "leased", "held", "dead")


@cache
def _client(store: str, pid: int) -> redis.Redis:
    """The client of this operating-system process: a forked process must not use the client of its parent."""
    if store != FAKEREDIS:
        return client_for(store)
    import fakeredis

    return fakeredis.FakeRedis(server=fakeredis.FakeServer(server_type="valkey"))


class ScriptContents:
    """The contents of a simulated store, in fakeredis or on a server, which run the real scripts.

    Args:
        store: "fakeredis", or the URL of a server.
        shards: number of shards.
    """

    def __init__(self, store: str, shards: int) -> None:
        self._shards = shards
        self._client: Any = _client(store, os.getpid())  # redis-py types replies as awaitable or not
        self._namespace = f"simulated-{os.getpid()}"
        self._backend = RedisBackend(self._client, Dialect(self._namespace, shards=shards))
        self._answers: dict[bytes, int] = {}  # key of an answer kept for repeats -> when it expires (us)
        self._markers: dict[int, Marker] = {}
        self._now_ms = 0  # the time of the last call
        self.empty()

    def execute(self, calls: Sequence[Call[Any]], wall_us: int) -> list[Any]:
        """Implements `StoreContents.execute`."""
        expired = [key for key, at_us in self._answers.items() if at_us <= wall_us]
        if expired:
            self._client.delete(*expired)
            for key in expired:
                del self._answers[key]
        for call in calls:
            if call.operation.token:
                self._answers.setdefault(self._key(call.shard, f"op:{call.operation.token}"), wall_us + ANSWER_TTL_US)
        self._now_ms = wall_us // 1_000
        answers = self._backend.execute(calls, self._now_ms)
        for shard in {call.shard for call in calls if not call.operation.reads}:
            self._number_marker(shard)
        return answers

    def _number_marker(self, shard: int) -> None:
        """Replace the id of a shard's marker by the next number, if the marker is new."""
        key, known = self._key(shard, "mark"), self._markers[shard]
        rows = self._client.xrevrange(key, count=1)
        if not rows or rows[0][0] == known.id:
            return
        added = self._client.xinfo_stream(key)["entries-added"] - (known is not NO_MARKER)
        fields = rows[0][1]
        marker = Marker(b"%d-0" % (int(known.id.partition(b"-")[0]) + added), int(fields[b"d"]))
        self._client.delete(key)
        self._client.xadd(key, fields, id=marker.id)
        self._markers[shard] = marker

    def marker(self, shard: int) -> Marker:
        """Implements `StoreContents.marker`."""
        return self._markers[shard]

    def items(self) -> list[KeptItem]:
        """Implements `StoreContents.items`."""
        items = []
        for shard in range(self._shards):
            claims = self._client.hgetall(self._key(shard, "claim"))
            places = [self._client.zrange(self._key(shard, place), 0, -1) for place in PLACES]
            ids = [decode_text(key) for key in sorted(key for keys in places for key in keys)]
            (found,) = self._backend.execute([Call(shard, Get(ids))], self._now_ms)
            for one in found:
                raw = claims[encode_text(one.id)] if one.state == "leased" else b"0"
                claim = int(raw.lstrip(b"!").partition(b":")[0])
                reason = one.reason if one.state in REASONED else ""
                items.append(KeptItem(shard, one.id, one.state, claim, one.topic, one.body, reason))
        return items

    def waiting(self) -> bool:
        """Implements `StoreContents.waiting`."""
        places = [self._key(shard, place) for shard in range(self._shards) for place in PLACES[:-1]]
        return bool(self._client.exists(*places))

    def positions(self) -> dict[str, int]:
        """Implements `StoreContents.positions`."""
        found: dict[str, int] = {}
        for shard in range(self._shards):
            for source, position in self._client.hgetall(self._key(shard, "in")).items():
                found[decode_text(source)] = max(int(position), found.get(decode_text(source), 0))
        return found

    def empty(self) -> None:
        """Implements `StoreContents.empty`."""
        self._answers.clear()
        for shard in range(self._shards):
            self._markers[shard] = NO_MARKER
            keys = self._client.keys(self._key(shard, "*"))
            if keys:
                self._client.delete(*keys)
        for answer in self._backend.execute([Call(shard, Open(self._shards, "test")) for shard in range(self._shards)]):
            if isinstance(answer, Exception):
                raise answer

    def flush_scripts(self) -> None:
        """Implements `StoreContents.flush_scripts`."""
        self._client.execute_command("FUNCTION", "FLUSH")
        self._client.execute_command("SCRIPT", "FLUSH")

    def _key(self, shard: int, name: str) -> bytes:
        return shard_keys(self._namespace, shard)[0].removesuffix(b"meta") + name.encode()

"""One typed function for each script of `lua/`. Only this module knows the order of a script's arguments.

If the server does not know a script (after a restart, failover or SCRIPT FLUSH), the function sends the script itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.exceptions import NoScriptError

if TYPE_CHECKING:
    import redis

    from retry_topic.brokers.redis_streams.connections import Connections

Entry = tuple[bytes, list[bytes], int]  # id, fields, deliveries


class Move(NamedTuple):
    """One delivery to settle, and the entry that is published in its place."""

    source: str
    entry_id: bytes
    target: str
    fields: list[bytes]


@cache
def _script(name: str) -> tuple[bytes, str]:
    source = files("retry_topic.brokers.redis_streams").joinpath("lua", f"{name}.lua").read_bytes()
    return source, sha1(source, usedforsecurity=False).hexdigest()  # the server identifies a script by its SHA-1


def _run(client: redis.Redis, name: str, keys: Sequence[str], args: Sequence[str | bytes | int]) -> Any:
    source, digest = _script(name)
    try:
        return client.execute_command("EVALSHA", digest, len(keys), *keys, *args)
    except NoScriptError:
        return client.execute_command("EVAL", source, len(keys), *keys, *args)


def _write(connections: Connections, name: str, keys: Sequence[str], args: Sequence[str | bytes | int]) -> Any:
    """Run an idempotent script, and wait until its writes have the durability level. Returns the script's reply."""
    source, digest = _script(name)
    (reply,) = connections.write(keys[0], [("EVALSHA", digest, len(keys), *keys, *args)], repeat=True)
    if isinstance(reply, NoScriptError):
        (reply,) = connections.write(keys[0], [("EVAL", source, len(keys), *keys, *args)], repeat=True)
    if isinstance(reply, Exception):
        raise reply
    return reply


def create(connections: Connections, stream: str) -> bool:
    """Create an empty stream when it is absent. Returns whether it was created."""
    return bool(_write(connections, "create", [stream], []))


def reclaim(
    client: redis.Redis, stream: str, group: str, consumer: str, idle_ms: int, cursor: bytes, limit: int
) -> tuple[bytes, list[Entry]]:
    """Take over entries that their holder has not renewed for `idle_ms`. Returns the next cursor and the entries."""
    following, *entries = _run(client, "reclaim", [stream], [group, consumer, idle_ms, cursor, limit])
    return following, [(entry_id, fields, int(deliveries)) for entry_id, fields, deliveries in entries]


def beat(client: redis.Redis, stream: str, group: str, consumer: str, idle_ms: int, ids: Sequence[bytes]) -> set[bytes]:
    """Renew entries that the consumer still holds. Returns the ids of the renewed entries.

    An entry whose last renewal is `idle_ms` or more ago is not renewed, because any member may take it over.
    """
    return set(_run(client, "beat", [stream], [group, consumer, idle_ms, *ids]))


def publish_once(
    connections: Connections, stream: str, mark: str, create_topics: bool, window_ms: int, fields: Sequence[bytes]
) -> bytes:
    """Append an entry, and keep its id in the key `mark` for `window_ms`. If `mark` names an earlier entry, do nothing.

    Returns `done` (also if nothing was done), `unknown` (there is no such stream) or an error's text.
    """
    args = ["" if create_topics else "NOMKSTREAM", window_ms, *fields]
    answer: bytes = _write(connections, "publish_once", [stream, mark], args)
    return answer


def forward(connections: Connections, group: str, create_topics: bool, moves: Sequence[Move]) -> list[bytes]:
    """Publish the entry and settle the delivery of each move. Returns for each move: `done`, `unknown` (no such stream)
    or an error's text."""
    index: dict[str, int] = {}
    args: list[str | bytes | int] = [group, "" if create_topics else "NOMKSTREAM"]
    for source, entry_id, target, fields in moves:
        at = index.setdefault(source, len(index) + 1)
        to = index.setdefault(target, len(index) + 1)
        args += (at, entry_id, to, len(fields), *fields)
    answers: list[bytes] = _write(connections, "forward", list(index), args)
    return answers


def reap(client: redis.Redis, stream: str, group: str, idle_ms: int, only: str = "") -> int:
    """Remove members without unsettled entries that were silent for `idle_ms`. Returns how many it removed.

    `only`: look at this member alone. Defaults to "": at all members.
    """
    return int(_run(client, "reap", [stream], [group, idle_ms, only]))


def trim(client: redis.Redis, stream: str, keep: int, *, unread: bool = False) -> int:
    """Drop the oldest entries beyond about `keep`, as far as every group has settled them. Returns their number.

    `unread`: also trim a stream without groups.
    """
    return int(_run(client, "trim", [stream], [keep, int(unread)]))

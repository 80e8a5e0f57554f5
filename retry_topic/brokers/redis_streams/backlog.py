"""Counts the entries of a stream that a group has not settled, without joining the group or changing anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retry_topic.brokers.protocol import Backlog
from retry_topic.message.encoding import from_entry

if TYPE_CHECKING:
    import redis

_COUNTED = 1_000  # at most this many entries are counted one by one when the server does not know the lag


def backlog(client: redis.Redis, stream: str, topic: str, group: str) -> Backlog:
    """See `BacklogBroker.backlog`."""
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

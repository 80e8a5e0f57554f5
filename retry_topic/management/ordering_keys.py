"""Lists the ordering keys that wait for a failed message, and releases them by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retry_topic.connection import Connection
from wheel_sched.errors import NotDone
from wheel_sched.store import Outcome
from wheel_sched.store.ordering import ClosedKey, OrderedKeys, ref_of


def locked_keys(connection: Connection, limit: int) -> tuple[list[dict[str, Any]], int]:
    """The locked keys as data for JSON, and the number of all locked keys. The key that waits longest is first.

    Args:
        connection: where the messages are stored.
        limit: the greatest number of keys to return.
    """
    found = sorted(OrderedKeys(connection.store).closed(), key=lambda key: (key.since_ms, key.lock))
    return [_as_dict(connection, key) for key in found[:limit]], len(found)


def release_keys(connection: Connection, locks: Sequence[str]) -> int:
    """Let the next message of each key be delivered, although the key's failed message has not succeeded.

    Returns how many keys were released.

    Args:
        connection: where the messages are stored.
        locks: the field `lock` of each key, as `locked_keys` returns it.

    Raises:
        NotDone: none of the keys is locked; nothing was changed.
    """
    released = OrderedKeys(connection.store).pass_by_hand(locks).count(Outcome.DONE)
    if not released:
        raise NotDone("no such key is locked: nothing was changed; see `wheel-sched keys list`")
    return released


def _as_dict(connection: Connection, key: ClosedKey) -> dict[str, Any]:
    """A locked key as data for JSON, with the state of the failed message for which the key waits."""
    ids = [item_id for item_id in connection.store.find(ref_of(key.lock)) if item_id.startswith(f"{key.head}.")]
    items = [item for item in connection.store.get(ids, anywhere=True) if item is not None and item.state != "dead"]
    return {
        "lock": key.lock,
        "key": key.label,
        "since_ms": key.since_ms,
        "head": items[0].id if items else key.head,
        "head_state": {"due": "waiting", "leased": "in flight"}.get(items[0].state, "held") if items else "out",
        "parked": key.parked,
    }

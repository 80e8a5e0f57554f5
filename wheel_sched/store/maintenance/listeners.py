"""Find the dispatchers of a namespace. Not all announce themselves, so the search wakes them and counts the woken ones.

A dispatcher blocks on the markers of its shards, on its own connection. A write to these markers ends exactly these
reads. No dispatcher acts on the due time in this write, because it is in the year 9999.
"""

from __future__ import annotations

import time
from typing import Any

from wheel_sched.store.core.call import Call
from wheel_sched.store.core.delay_store import Backend
from wheel_sched.store.maintenance.operations import Freeze

_WAKE_S = 0.3  # a listener reacts within a millisecond; a busy machine needs more


def listeners(backend: Backend, shards: int) -> int:
    """How many dispatchers listen to the namespace: those whose blocked reads end when the markers are written.

    If the server does not count the commands of connections, every connection with a blocked read counts. If this user
    may not list connections, the answer is 0, and only the freeze protects the reshard.
    """
    before = _blocked(backend)
    if not all(before.values()):
        return len(before)  # the server does not say enough about the connections: count all of them
    for answer in backend.execute([Call(shard, Freeze("wake")) for shard in range(shards)]):
        if isinstance(answer, Exception):
            raise answer
    until = time.monotonic() + _WAKE_S
    woken: set[str] = set()
    while time.monotonic() < until:
        after = _blocked(backend)
        woken |= {client for client, commands in before.items() if after.get(client) != commands}
        if len(woken) == len(before):
            break
        time.sleep(0.02)  # another process reacts; this one can only poll
    return len(woken)


def _blocked(backend: Backend) -> dict[str, str]:
    """The connections that block in an XREAD, each with the number of commands that it has sent ("": not known).

    Empty if there is no client, or if it may not list connections.
    """
    client: Any = getattr(backend, "client", None)
    if client is None:
        return {}
    nodes = [node.redis_connection for node in client.get_primaries()] if backend.cluster else [client]
    try:
        rows = [row for node in nodes for row in node.client_list()]
    except Exception:  # CLIENT LIST may be hidden from this user
        return {}
    return {
        f"{row.get('addr')}#{row['id']}": str(row.get("tot-cmds", ""))
        for row in rows
        if row.get("cmd") == "xread" and "b" in row.get("flags", "")
    }

"""What fair shares cost: the server's time of claims while no topic is fair, and the memory of a key."""

from __future__ import annotations

from functools import cache
from typing import Any
from unittest import mock

from benchmarks.messages import TOPIC, VALUE, ids, in_batches, plain_items
from benchmarks.server import NAMESPACE, BenchServer
from wheel_sched.store import DelayStore, Done, Item
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.delay_store import values_of
from wheel_sched.store.fair_shares import FairSettings, FairShares, PrepareDue, fair_ref
from wheel_sched.store.redis import library as scripts
from wheel_sched.store.redis.backend import RedisBackend
from wheel_sched.store.redis.round_trips import Dialect
from wheel_sched.store.rooms import ROOMS

_CLAIM = 80
_TENANTS = 100
_BEFORE = "before"  # the name of the library without the folder of fair shares


def claim_us(server: BenchServer, count: int, *, before: bool) -> float:
    """Microseconds of the server for a claim of 80 overdue messages and its settlement, while no topic is fair.

    Args:
        server: the server; it is emptied.
        count: how many messages are claimed.
        before: whether the library of scripts lacks the folder of fair shares.
    """
    store = server.empty_store()
    if before:
        _make_library_before()
        store = DelayStore(RedisBackend(server.client, Dialect(NAMESPACE, variant=_BEFORE)), shards=1).open()
    for batch in in_batches(plain_items(ids(count), store.now_ms() - 1000)):
        store.schedule(batch)
    store.settle(claim := store.claim(_CLAIM), [Done(item.id) for item in claim.items])  # the scripts are loaded now
    server.client.config_resetstat()
    claims = 0
    while (claim := store.claim(_CLAIM)).items:
        store.settle(claim, [Done(item.id) for item in claim.items])
        claims += 1
    stats: Any = server.client.info("commandstats")
    spent_us = stats["cmdstat_fcall"]["usec"]
    return float(spent_us) / claims


def schedule_us(server: BenchServer, count: int, *, fair: bool) -> float:
    """Microseconds of the server to store a message of one of a hundred tenants that is due soon."""
    store = server.empty_store()
    FairShares(store).configure(TOPIC, FairSettings() if fair else None)
    due_ms = store.now_ms() + 30_000
    names = ids(count)
    items = [Item(name, due_ms, VALUE, TOPIC, (fair_ref(f"t{n % _TENANTS}"),)) for n, name in enumerate(names)]
    store.schedule(items[:1])  # the scripts are loaded now
    server.client.config_resetstat()
    for batch in in_batches(items[1:]):
        store.schedule(batch)
    stats: Any = server.client.info("commandstats")
    return float(stats["cmdstat_fcall"]["usec"]) / (count - 1)


@cache
def _make_library_before() -> None:
    """Make a library of scripts without those of fair shares. `library` keeps it under the name `_BEFORE`."""
    others = tuple(room for room in ROOMS if room.folder != "fair_shares")
    scripts._sources.cache_clear()
    with mock.patch.object(scripts, "ROOMS", others):
        scripts.library(_BEFORE)
    scripts._sources.cache_clear()


def bytes_per_key(server: BenchServer, keys: int) -> float:
    """Bytes of memory that a key with one overdue message takes, beyond that of its message.

    The messages are stored, and measured, before their topic is fair. So both measurements are of the same messages.
    """
    store = server.empty_store()
    due_ms = store.now_ms() - 1000
    items = [Item(name, due_ms, VALUE, TOPIC, (fair_ref(f"tenant-{n}"),)) for n, name in enumerate(ids(keys))]
    for batch in in_batches(items):
        store.schedule(batch)
    before = server.used_memory()
    shares = FairShares(store)
    shares.configure(TOPIC, FairSettings())
    while (found := shares.look(TOPIC, 1)) is not None and found.waiting < keys:
        values_of(store.execute([Call(0, PrepareDue())]))
    return (server.used_memory() - before) / keys

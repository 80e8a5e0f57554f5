"""The store and the dispatcher on a real Cluster and behind a real Sentinel."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest
import redis
from redis.sentinel import Sentinel

from tests.servers.valkey import TemporaryServer
from wheel_sched.dispatcher import Batch, Dispatcher, Failed, PublisherTraits
from wheel_sched.errors import StoreUnavailable
from wheel_sched.store import Claimed, DelayStore, Done, Item, Next, Outcome, open_store

if TYPE_CHECKING:
    from redis.cluster import RedisCluster

pytestmark = [pytest.mark.real, pytest.mark.slow]

SHARDS = 6


class Receiver:
    """A publisher that keeps the items it gets."""

    traits = PublisherTraits()

    def __init__(self, expected: int) -> None:
        self.arrived: list[tuple[str, int]] = []
        self.complete = threading.Event()
        self._expected = expected

    def publish(self, batch: Batch) -> None:
        now_ms = time.time_ns() // 1_000_000
        self.arrived += [(item.id, now_ms - item.due_ms) for item in batch.items]
        batch.answers[:] = [Done(item.id) for item in batch.items]
        if len(self.arrived) >= self._expected:
            self.complete.set()

    def refuse(self, item: Claimed, reason: str) -> Failed:
        return Failed(reason)


def released(store: DelayStore, count: int) -> list[tuple[str, int]]:
    """Schedule `count` items over the next half second. Return the ids that a dispatcher releases, and how late in
    ms."""
    receiver = Receiver(count)
    with Dispatcher(store, receiver):
        start_ms = store.now_ms() + 200
        store.schedule([Item(f"m{n}", start_ms + n % 500, b"x" * 100, "orders") for n in range(count)])
        assert receiver.complete.wait(20)
    return receiver.arrived


def test_a_namespace_spreads_over_a_cluster(cluster: RedisCluster, namespace: str) -> None:
    """All operations work on shards of both nodes of a cluster, and the counters are correct."""
    with open_store(cluster, namespace=namespace, shards=SHARDS) as store:
        now_ms = store.now_ms()
        ids = [f"i{n}" for n in range(300)]
        assert store.schedule([Item(item_id, now_ms - 1, b"x", "orders") for item_id in ids]).accepted == 300
        claims = [store.claim(500, shard=shard) for shard in range(SHARDS)]
        assert sorted(item.id for claim in claims for item in claim.items) == sorted(ids)
        for claim in claims:
            done, *rest = claim.items
            settled = store.settle(claim, [Done(done.id), *(Next(item.id, now_ms + 60_000) for item in rest)])
            assert set(settled.outcomes) == {Outcome.DONE}
        page = store.list_items("due", limit=500)
        assert len(page.found) == 300 - SHARDS
        assert store.pause("orders") == store.resume("orders") == 300 - SHARDS
        counts = store.counts()
        assert counts.total("due") == counts.sizes["due"] == 300 - SHARDS
        nodes = {cluster.get_node_from_key(f"{{{namespace}:{shard}}}:meta") for shard in range(SHARDS)}
        assert len(nodes) == 2


def test_a_dispatcher_releases_from_every_node_of_a_cluster(cluster: RedisCluster, namespace: str) -> None:
    """Items that are stored after the dispatcher's start are released once and never early, from every shard of a
    cluster."""
    with open_store(cluster, namespace=namespace, shards=SHARDS) as store:
        arrived = released(store, 600)
    assert len({item_id for item_id, _ in arrived}) == len(arrived) == 600
    assert min(late_ms for _, late_ms in arrived) >= 0


def test_a_lost_library_is_loaded_again_on_every_node(cluster: RedisCluster, namespace: str) -> None:
    """After a FUNCTION FLUSH on all nodes of a cluster, the next call of each shard loads the library again and
    succeeds."""
    with open_store(cluster, namespace=namespace, shards=SHARDS) as store:
        for node in cluster.get_primaries():
            node.redis_connection.function_flush()
        assert store.schedule([Item(f"i{n}", 0, b"x") for n in range(60)]).accepted == 60
        assert store.counts().total("due") == 60


def test_a_client_made_by_sentinel_leads_to_the_primary(
    primary: TemporaryServer, sentinel_port: int, namespace: str
) -> None:
    """With a client from Sentinel, the store and the dispatcher's listener connect to the primary that Sentinel
    names."""
    sentinel = Sentinel([("127.0.0.1", sentinel_port)])
    client = sentinel.master_for("main")
    with open_store(client, namespace=namespace) as store:
        arrived = released(store, 100)
        assert len({item_id for item_id, _ in arrived}) == len(arrived) == 100
        with redis.Redis(port=primary.port or 0) as direct:
            assert direct.exists(f"{{{namespace}:0}}:meta")
    client.close()
    for watcher in sentinel.sentinels:
        watcher.close()


def test_a_listener_outlives_a_slot_without_a_server(cluster: RedisCluster, namespace: str) -> None:
    """If no node serves a shard's hash slot, the store raises a transient error, which does not end the listener
    thread."""
    with open_store(cluster, namespace=namespace) as store:
        slots = cluster.nodes_manager.slots_cache
        served = slots.pop(cluster.keyslot(f"{{{namespace}:0}}:mark"))
        with pytest.raises(StoreUnavailable, match="not covered"):
            store.backend.waiter(0, 10)
        slots[cluster.keyslot(f"{{{namespace}:0}}:mark")] = served


def test_a_slot_that_is_being_moved_is_a_transient_error(
    cluster: RedisCluster, cluster_nodes: list[TemporaryServer], namespace: str
) -> None:
    """While a hash slot is moved to another node, a call raises a transient error. After the move the call succeeds."""
    slot = cluster.keyslot(f"{{{namespace}:0}}:meta")
    with open_store(cluster, namespace=namespace) as store:
        item = Item("a", store.now_ms(), b"x", "orders")
        source, target = (node.redis_connection for node in cluster.get_primaries())
        if (
            cluster.get_node_from_key(f"{{{namespace}:0}}:meta").port
            != source.connection_pool.connection_kwargs["port"]
        ):
            source, target = target, source
        ids = {client: client.execute_command("CLUSTER", "MYID").decode() for client in (source, target)}
        target.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
        source.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target])
        with pytest.raises(StoreUnavailable, match="being moved: nothing was executed") as caught:
            store.schedule([item], token="t")
        assert caught.value.transient
        keys = source.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100)
        port = target.connection_pool.connection_kwargs["port"]
        source.execute_command("MIGRATE", "127.0.0.1", port, "", 0, 5_000, "KEYS", *keys)
        for client in (target, source):
            client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[target])
        assert store.schedule([item], token="t").accepted == 1
        assert [one.id for one in store.claim(1).items] == ["a"]

"""Fair shares over owned shards: an owner dies, and its successor sends each message once and keeps the shares."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from retry_topic.brokers.protocol import BrokerInDoubt, PublishFailure
from retry_topic.message import Message
from retry_topic.message.encoding import encode_body
from retry_topic.release.shard_ownership import ShardOwner
from retry_topic.release.transactions import OwnedShards, TransactionalPublisher, transactional_config
from wheel_sched.dispatcher import Dispatcher, DispatcherConfig
from wheel_sched.errors import BrokerUnavailable, StoreUnavailable
from wheel_sched.store import DelayStore, FairSettings, FairShares, Item, fair_ref, open_store
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.plans import shard_of

WEIGHTS = {"gold": 4, "silver": 2, "iron": 1}
SHARDS = 2
OF_EACH = 1500  # messages of a key in a shard
MEASURED = 2200  # the first messages of a shard, about 1257 of them gold: no key runs out
BATCH = 70
DIES_AFTER = 8  # transactions of the first owner
LEASE_MS = 500
PATIENCE_S = 30.0


class Cluster:
    """What the broker has: the messages of committed transactions and the last committed claim, by shard."""

    def __init__(self) -> None:
        self.sent: dict[int, list[bytes]] = {shard: [] for shard in range(SHARDS)}
        self.numbers: dict[int, int] = {}


class Mortal(DelayStore):
    """The store as one process sees it: after the process has died, no call of it arrives."""

    dead = False

    def execute(self, calls: Sequence[Call[Any]]) -> list[Any]:
        if self.dead:
            raise StoreUnavailable("this process is dead")
        return super().execute(calls)


class Sender:
    """Sends the transactions of a process. `dies`: "unsent": before its last commit; "sent": after it; "": never."""

    def __init__(self, cluster: Cluster, store: Mortal, dies: str) -> None:
        self.cluster, self.store, self.dies = cluster, store, dies
        self.sends = 0

    def take_over(self, shard: int) -> int | None:
        self._alive()
        return self.cluster.numbers.get(shard)

    def send(self, shard: int, number: int, messages: Sequence[Message]) -> list[PublishFailure | None]:
        self._alive()
        self.sends += bool(messages)
        last = bool(self.dies) and self.sends == DIES_AFTER
        self.store.dead = last
        if not last or self.dies == "sent":
            self.cluster.sent[shard] += [message.value for message in messages]
            self.cluster.numbers[shard] = number
        if last:
            raise BrokerInDoubt("this process has died")
        return [None] * len(messages)

    def _alive(self) -> None:
        if self.store.dead:
            raise BrokerUnavailable("this process is dead")

    def stale(self, shard: int) -> bool:
        return False

    def close(self) -> None:
        """Do nothing."""


class Process:
    """A process that releases the messages of the shards that it owns."""

    def __init__(self, store: DelayStore, cluster: Cluster, dies: str = "") -> None:
        self.store = Mortal(store.backend, shards=SHARDS)
        self.sender = Sender(cluster, self.store, dies)
        self.ownership = ShardOwner(self.store, self.sender, lease_ms=LEASE_MS, lapse_cap=0)
        publisher = TransactionalPublisher(self.store, self.ownership, self.sender)
        config = transactional_config(DispatcherConfig(batch=BATCH), SHARDS)
        self.dispatcher = Dispatcher(self.store, publisher, claims=OwnedShards(self.ownership), config=config)


def route_to(shard: int) -> str:
    """A route whose items lie in this shard."""
    return next(f"route-{n}" for n in range(1000) if shard_of(f"route-{n}", SHARDS) == shard)


@pytest.fixture
def store() -> Iterator[DelayStore]:
    """A store in memory in which each of two shards has the same backlog of three fair keys."""
    with open_store("memory:", shards=SHARDS) as store:
        FairShares(store).configure("t", FairSettings(weights=WEIGHTS))
        for shard in range(SHARDS):
            for number in range(OF_EACH):  # all keys have due messages from the beginning
                names = [f"{key}.{shard}.{number}" for key in WEIGHTS]
                bodies = [encode_body(Message("t", name.encode())) for name in names]
                refs = [(fair_ref(key),) for key in WEIGHTS]
                given = zip(names, bodies, refs, strict=True)
                route = route_to(shard)
                store.schedule([Item(name, 1 + number, body, "t", ref, route) for name, body, ref in given])
        yield store


@pytest.mark.parametrize("dies", ["unsent", "sent"])
def test_shares_hold_and_each_message_goes_out_once_when_an_owner_dies(store: DelayStore, dies: str) -> None:
    """The first owner of both shards dies before or after it has committed a claim. Its successor takes both shards
    over. In each shard the keys get their shares within 5 %, and each message is sent once."""
    cluster = Cluster()
    first, second = Process(store, cluster, dies), Process(store, cluster)
    until_s = time.monotonic() + PATIENCE_S
    with first.dispatcher:
        while not first.store.dead:
            assert time.monotonic() < until_s
            time.sleep(0.005)  # polls the first owner's threads
        sent_by_first = sum(map(len, cluster.sent.values()))
        with second.dispatcher:
            while store.counts().now:
                assert time.monotonic() < until_s
                time.sleep(0.01)  # polls until the dead owner's lease has ended and all is sent
        first.dispatcher.stop(timeout_s=0)  # 0: its dead publisher gives no answers
    assert 0 < sent_by_first <= DIES_AFTER * BATCH
    for shard, sent in cluster.sent.items():
        assert sorted(sent) == sorted(f"{key}.{shard}.{n}".encode() for key in WEIGHTS for n in range(OF_EACH))
        served = Counter(value.partition(b".")[0].decode() for value in sent[:MEASURED])
        for key, weight in WEIGHTS.items():
            due = MEASURED * weight / sum(WEIGHTS.values())
            assert abs(served[key] - due) <= 0.05 * due, (shard, served)

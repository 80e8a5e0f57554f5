"""What a killed server may lose, for each durability level, as docs/guarantees.md says. Real processes.

After a SIGKILL of the server, the data that it has written to the kernel is still there. So these tests show
what a crash of the server loses. `tests/retry_topic/durability` tests a crash of the machine.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.servers.valkey import TemporaryServer, temporary_server
from wheel_sched.errors import InDoubt, StoreUnavailable
from wheel_sched.store import open_store
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.claim import ClaimDue, ClaimOwned
from wheel_sched.store.core.items import STATES, Item
from wheel_sched.store.core.settle import Done
from wheel_sched.store.redis import durability
from wheel_sched.store.redis.backend import RedisBackend, client_for
from wheel_sched.store.redis.round_trips import Dialect
from wheel_sched.testing.store_conformance import Bench

pytestmark = [pytest.mark.real, pytest.mark.slow]

BATCH = 20
LOSS_WINDOW_S = 2.0


@dataclass
class Ledger:
    """What the client knows: when each id was acknowledged, and which ids it tried to settle."""

    acknowledged_s: dict[str, float] = field(default_factory=dict)
    settled: set[str] = field(default_factory=set)


def work_until_killed(server: TemporaryServer, durability: str, after_s: float) -> Ledger:
    """Schedule and settle items until the server is killed, after `after_s` seconds. Return what the client knows."""
    ledger = Ledger()
    killer = threading.Timer(after_s, server.sigkill)
    with open_store(server.url, durability=durability) as store, contextlib.suppress(StoreUnavailable):
        killer.start()
        for n in range(1_000_000):
            ids = [f"{n}-{i}" for i in range(BATCH)]
            store.schedule([Item(item_id, 0, b"x" * 100) for item_id in ids])
            ledger.acknowledged_s |= dict.fromkeys(ids, time.monotonic())
            if n % 3 == 0:
                claim = store.claim(BATCH // 2)
                ledger.settled |= {
                    item.id for item in claim.items
                }  # noted before the call, which may be executed although the reply is lost
                store.settle(claim, [Done(item.id) for item in claim.items])
    killer.join()
    return ledger


def lost(server: TemporaryServer, ledger: Ledger, until_s: float) -> set[str]:
    """Restart the server over the same folder. Return the ids that are missing then.

    Only ids count that were acknowledged by `until_s` and never settled.
    """
    server.restart()
    kept = [i for i, at in ledger.acknowledged_s.items() if at <= until_s and i not in ledger.settled]
    assert len(kept) >= BATCH
    with open_store(server.url) as store:
        counts = store.counts()
        assert {state: counts.total(state) for state in STATES} == {state: counts.sizes[state] for state in STATES}
        return {item_id for item_id, found in zip(kept, store.get(kept), strict=True) if found is None}


def test_fsync_loses_nothing_acknowledged() -> None:
    """With `fsync`, each batch is on disk before it is acknowledged, so a killed server loses none."""
    with temporary_server(fsync="always") as server:
        ledger = work_until_killed(server, "fsync", 1.0)
        assert len(ledger.acknowledged_s) >= 3 * BATCH
        assert lost(server, ledger, time.monotonic()) == set()


def test_everysec_loses_at_most_two_seconds() -> None:
    """With `everysec`, a killed server still has, after a restart, all items that it acknowledged more than 2 s before
    the kill."""
    with temporary_server() as server:
        ledger = work_until_killed(server, "everysec", 3.0)
        killed_s = max(ledger.acknowledged_s.values())
        assert killed_s - min(ledger.acknowledged_s.values()) > LOSS_WINDOW_S
        assert lost(server, ledger, killed_s - LOSS_WINDOW_S) == set()


def test_a_write_that_is_not_confirmed_is_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the replica is down, a write is executed and reported as in doubt. Its repeat under the same token stores
    nothing more."""
    monkeypatch.setattr(durability, "CONFIRM_MS", 100)
    with temporary_server(tcp=True) as primary, client_for(primary.url) as client:
        with temporary_server(replica_of=primary) as replica:
            bench = Bench(RedisBackend(client, Dialect("n", "replicated")), 1)
            bench.put("a")
            replica.stop()
            item = Item("b", bench.now_ms, b"")
            with pytest.raises(InDoubt) as caught:
                bench.store.schedule([item], token="t")
            assert caught.value.transient
            replica.restart()
            client.wait(1, 5000)
            assert bench.store.schedule([item], token="t").accepted == 1
        assert bench.store.counts().happened("accepted") == 2


def test_an_embedded_store_syncs_as_its_level_asks(tmp_path: Path) -> None:
    """With "fsync" an embedded server syncs each batch at once. A sync each second would need thirty seconds for
    thirty batches."""
    began_s = time.monotonic()
    with open_store(f"embedded:{tmp_path}", durability="fsync") as store:
        for n in range(30):
            assert store.schedule([Item(f"i{n}", 0, b"")]).accepted == 1
    assert time.monotonic() - began_s < 20


@pytest.mark.parametrize("level", ["fsync", "replicated"])
def test_a_claim_that_a_transaction_names_is_confirmed(level: str) -> None:
    """A lost claim with a lease only costs a repeat. A claim of an owned shard is named in the transaction that
    publishes its items, so the claim must not be lost."""
    dialect = Dialect("orders", level)
    assert dialect.confirmation([Call(0, ClaimDue(10, 1_000))]) == ()
    assert dialect.confirmation([Call(0, ClaimOwned(10, None))]) != ()

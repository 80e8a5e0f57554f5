"""What the store's error says, and what did not change, if a server is away, full, a replica, locked, or loses
replies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import redis.sentinel

from tests.servers.faulty_proxy import FaultyProxy
from tests.servers.valkey import TemporaryServer, free_port, temporary_server
from wheel_sched.errors import (
    StoreAuthError,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    WheelSchedError,
)
from wheel_sched.store import ServerPush, open_store
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.counts import Count
from wheel_sched.store.core.items import Item, Outcome
from wheel_sched.store.core.schedule import Schedule
from wheel_sched.store.core.settle import Dead, Done, Next, Settlement
from wheel_sched.store.documents import Documents
from wheel_sched.store.push.push_form import encode_push
from wheel_sched.store.redis import faults
from wheel_sched.store.redis.backend import RedisBackend, client_for
from wheel_sched.store.redis.round_trips import Dialect, Sleep
from wheel_sched.testing.store_conformance import Bench

pytestmark = pytest.mark.real


@pytest.fixture
def proxy(real_server: TemporaryServer) -> Iterator[FaultyProxy]:
    with FaultyProxy(real_server.url) as proxy:
        yield proxy


@pytest.fixture
def bench(proxy: FaultyProxy, namespace: str) -> Iterator[Bench]:
    """A test bench with a store behind a proxy. The function library is loaded, and the connection is open."""
    with client_for(proxy.url) as client:
        bench = Bench(RedisBackend(client, Dialect(namespace)), 1)
        bench.store.counts()
        yield bench
        bench.check()


class TestLostReplies:
    """The server executes a call, but its reply is lost. The client repeats the call and gets the same answer.

    Nothing is done twice.
    """

    def lose(self, proxy: FaultyProxy, script: str, call: Callable[[], Any]) -> Any:
        """Make a call whose first reply the proxy drops. Return the answer of the client's repeat."""
        before = proxy.counts.dropped_replies
        proxy.drop_next_reply(containing=f"_{script}\r\n".encode())
        answer = call()
        assert proxy.counts.dropped_replies == before + 1, "expected the reply to get lost"
        return answer

    def test_schedule(self, proxy: FaultyProxy, bench: Bench) -> None:
        """If the reply to `schedule` is lost, the repeat returns STORED, not DUPLICATE."""
        items = [Item(f"i{n}", bench.now_ms, b"") for n in range(3)]
        stored = self.lose(proxy, "schedule", lambda: bench.store.schedule(items))
        assert stored.outcomes == [Outcome.STORED] * 3
        assert bench.store.counts().ever == {("accepted", ""): 3}

    def test_claim(self, proxy: FaultyProxy, bench: Bench) -> None:
        """If the reply to a claim is lost, the repeat returns the same batch, and the other items stay due."""
        bench.put(*(f"i{n}" for n in range(10)))
        claim = self.lose(proxy, "claim", lambda: bench.claim(3))
        assert [item.id for item in claim.items] == ["i0", "i1", "i2"]
        assert bench.store.counts().now == {("due", ""): 7, ("leased", ""): 3}
        assert bench.settle_all(claim) == [Outcome.DONE] * 3

    def test_settle(self, proxy: FaultyProxy, bench: Bench) -> None:
        """If the reply to `settle` is lost, the repeat returns DONE, not STALE, for each kind of settlement."""
        bench.put("a", "b", "c", "d")
        claim = bench.claim()
        ends: list[Settlement] = [Done("a"), Next("b", bench.now_ms + 9), Dead("c", "x"), Done("zz")]
        settled = self.lose(proxy, "settle", lambda: bench.store.settle(claim, ends))
        assert settled.outcomes == [Outcome.DONE] * 3 + [Outcome.STALE]
        assert bench.store.counts().happened("completed") == 1
        assert bench.states("a", "b", "c", "d") == [None, "due", "dead", "leased"]

    def test_change(self, proxy: FaultyProxy, bench: Bench) -> None:
        """If the reply to `cancel` or `requeue` is lost, the repeat returns DONE, as the first call did."""
        bench.put("a", in_ms=50)
        assert self.lose(proxy, "change", lambda: bench.store.cancel(["a"])) == [Outcome.DONE]
        bench.bury("d")
        requeue = [("d", bench.now_ms, None)]
        assert self.lose(proxy, "change", lambda: bench.store.requeue(requeue)) == [Outcome.DONE]

    def test_extend(self, proxy: FaultyProxy, bench: Bench) -> None:
        """If the reply to `extend` is lost, the repeat returns the answer of the first call."""
        bench.put("a")
        claim = bench.claim(lease_ms=10)
        assert self.lose(proxy, "extend", lambda: bench.store.extend(claim, ["a"], 500)) == [Outcome.DONE]
        assert bench.one("a").score_ms == bench.now_ms + 500

    def test_push(self, proxy: FaultyProxy, bench: Bench, shared_client: Any, namespace: str) -> None:
        """If the reply to a push is lost, the repeat pushes nothing more, so each item is in the queue once."""
        items = [Item(f"i{n}", bench.now_ms, encode_push("L", "q", [b"%d" % n])) for n in range(5)]
        bench.store.schedule(items)
        pushed = self.lose(proxy, "publish", lambda: ServerPush(bench.store).push(prefix=f"{namespace}/"))
        assert len(pushed.dues_ms) == 5
        assert shared_client.llen(f"{namespace}/q") == 5

    def test_reading(self, proxy: FaultyProxy, bench: Bench) -> None:
        """The client repeats a read whose reply was lost."""
        bench.put("a", refs=("r",))
        assert self.lose(proxy, "get", lambda: bench.one("a")).id == "a"
        assert self.lose(proxy, "find", lambda: bench.store.find("r")) == ["a"]
        assert self.lose(proxy, "counts", bench.store.counts).total("due") == 1

    def test_a_caller_that_gives_up_may_repeat_under_its_token(self, proxy: FaultyProxy, bench: Bench) -> None:
        """After three lost replies the caller gets a transient error. A repeat under the caller's token gets the
        first answer."""
        for _ in range(3):
            proxy.drop_next_reply(containing=b"_schedule\r\n")
        item = Item("a", bench.now_ms, b"")
        with pytest.raises(StoreUnavailable) as caught:
            bench.store.schedule([item], token="mine")
        assert caught.value.transient
        assert bench.states("a") == ["due"]
        assert bench.store.schedule([item], token="mine").outcomes == [Outcome.STORED]

    def test_only_the_lost_calls_of_a_batch_are_repeated(self, proxy: FaultyProxy, bench: Bench) -> None:
        """Several calls are sent in one round trip, and one reply is lost. Each call is executed once."""
        proxy.drop_next_reply(containing=b"_schedule\r\n")
        calls: list[Call[Any]] = [Call(0, Schedule([Item(f"i{n}", bench.now_ms, b"")])) for n in range(5)]
        answers = bench.store.execute([*calls, Call(0, Count())])
        assert [answer.outcomes for answer in answers[:5]] == [[Outcome.STORED]] * 5
        assert bench.store.counts().happened("accepted") == 5


def test_a_server_that_is_away_is_a_transient_error() -> None:
    """If the server is down, opening a store raises a transient error. It says that nothing was sent and to repeat
    the call."""
    for scheme in (f"redis://127.0.0.1:{free_port()}/0", "unix:///nowhere/server.sock"):
        with pytest.raises(StoreUnavailable, match=r"no connection.*nothing was sent.*repeat") as caught:
            open_store(scheme)
        assert caught.value.transient
        assert "executed" not in str(caught.value)


@pytest.mark.parametrize(
    ("reply", "writes", "sent", "words"),
    [
        (redis.ConnectionError("Error 111 connecting to h:6379. Connection refused."), True, False, "nothing was sent"),
        (
            redis.ConnectionError("Error 111 connecting to h:6379. Connection refused."),
            True,
            True,
            "may have been exec",
        ),
        (redis.ConnectionError("Error 111 connecting to h:6379. Connection refused."), False, True, "nothing was sent"),
        (redis.TimeoutError("Timeout connecting to server"), True, False, "nothing was sent"),
        (redis.sentinel.MasterNotFoundError("No master found for 'main'"), True, False, "nothing was sent"),
        (redis.ConnectionError("Connection closed by server."), True, False, "may have been executed"),
        (
            redis.ConnectionError("Error 32 while writing to socket. Broken pipe."),
            True,
            False,
            "may have been executed",
        ),
        (redis.ConnectionError("Connection closed by server."), False, False, "nothing was changed"),
        (redis.TimeoutError("Timeout reading from socket"), False, False, "nothing was changed"),
    ],
)
def test_a_failed_connection_says_whether_anything_was_sent(
    reply: Exception, writes: bool, sent: bool, words: str
) -> None:
    """The error says one of three things: nothing was sent, a read changed nothing, or a write may have been
    executed."""
    translated = faults.translate(reply, writes=writes, sent=sent)
    assert isinstance(translated, StoreUnavailable)
    assert words in str(translated)
    assert translated.in_doubt == words.startswith("may have")


def test_a_write_that_was_sent_once_stays_in_doubt() -> None:
    """If a write's reply was lost, and the repeats reached no server, the error says that the write may have been
    executed."""
    trips = Dialect("n").round_trips([Call(0, Schedule([Item("a", 0, b"")], token="t"))], None)
    lost, refused = redis.ConnectionError("Connection closed by server."), redis.ConnectionError("connecting to h.")
    next(trips)
    step = trips.send([lost])
    answers: list[Any] = []
    while not answers:
        try:
            step = trips.send([] if isinstance(step, Sleep) else [refused])
        except StopIteration as end:
            answers = end.value
    assert "may have been executed" in str(answers[0])


def test_a_call_without_a_connection_was_not_sent() -> None:
    """Without a connection, neither a read nor a write is in doubt."""
    with temporary_server() as server, client_for(server.url) as client:
        bench = Bench(RedisBackend(client, Dialect("n")), 1)
        server.stop()
        client.connection_pool.disconnect()
        for call in (bench.store.counts, lambda: bench.put("a")):
            with pytest.raises(StoreUnavailable, match="nothing was sent"):
                call()


def test_a_server_that_goes_and_comes_back_is_used_again() -> None:
    """Calls fail while the server is down. After its restart they succeed, with all stored data."""
    with temporary_server() as server, client_for(server.url) as client:
        bench = Bench(RedisBackend(client, Dialect("n")), 1)
        bench.put("a")
        server.stop()
        with pytest.raises(StoreUnavailable):
            bench.put("b")
        server.restart()
        assert bench.put("b") == [Outcome.STORED]
        assert [item.id for item in bench.claim().items] == ["a", "b"]
        bench.check()


@pytest.mark.parametrize("functions", [True, pytest.param(False, id="without functions")])
def test_a_full_server_can_be_drained(functions: bool) -> None:
    """At `maxmemory` new items are refused and change nothing. Claims and settlements still work and free memory.

    For functions, a flag allows this. For EVALSHA scripts the server decides at the first write, which here removes
    data.
    """
    with temporary_server() as server, client_for(server.url) as client:
        bench = Bench(RedisBackend(client, Dialect("n", functions=functions)), 1)
        bench.put("before")
        bench.settle_all(bench.claim())
        client.config_set("maxmemory", client.info("memory")["used_memory"] + 3_000_000)
        stored = 0
        refusal: StoreFull | None = None
        while refusal is None:
            batch = [Item(f"{stored + n}", bench.now_ms, bytes(5000)) for n in range(20)]
            try:
                stored += bench.store.schedule(batch).accepted
            except StoreFull as full:
                refusal = full
        assert refusal.transient
        assert "nothing was written" in str(refusal)
        bench.check()
        assert stored == bench.store.counts().sizes["due"] > 100
        if functions:  # a process that starts now can empty the server, also by a durable operation
            with open_store(server.url, namespace="n", test_clock=lambda: bench.now_ms) as other:
                assert other.counts().sizes["due"] == stored
                assert Documents(other).put("operations", "empty it", b"{}") == 1
        bench.clock.advance(5)
        while (claim := bench.claim(50)).items:
            assert set(bench.settle_all(claim)) == {Outcome.DONE}
        bench.check()
        assert bench.put("after") == [Outcome.STORED]


@pytest.mark.slow
def test_a_replica_takes_no_writes_and_can_be_read() -> None:
    """On a replica reads succeed, and a write raises an error that says to connect to the primary."""
    with temporary_server(tcp=True) as primary, temporary_server(replica_of=primary) as replica:
        with client_for(primary.url) as client:
            bench = Bench(RedisBackend(client, Dialect("n")), 1)
            bench.put("a")
            client.wait(1, 5000)
        with client_for(replica.url) as client:
            backend = RedisBackend(client, Dialect("n"))
            bench.store.backend = backend
            with pytest.raises(StoreReadOnly, match="primary"):
                bench.put("b")
            with pytest.raises(StoreReadOnly):
                bench.claim()
            assert bench.states("a", "b") == ["due", None]
            assert bench.store.counts().total("due") == 1


@pytest.mark.parametrize("password", ["", ":wrong@"], ids=["missing", "wrong"])
def test_a_wrong_password_is_no_transient_error(password: str) -> None:
    """A missing or wrong password raises an error that is not transient, because a repeat cannot help."""
    with temporary_server(tcp=True) as server:
        with redis.Redis.from_url(server.url) as admin:
            admin.config_set("requirepass", "secret")
        with pytest.raises(StoreAuthError) as caught:
            open_store(f"redis://{password}127.0.0.1:{server.port}/0")
        assert not caught.value.transient
        assert "secret" not in str(caught.value)
        with open_store(f"redis://:secret@127.0.0.1:{server.port}/0") as store:
            assert store.counts().total("due") == 0
        with redis.Redis.from_url(server.url, password="secret") as admin:
            admin.config_set("requirepass", "")


def test_a_wrong_kind_of_key_is_an_error_that_changes_nothing(shared_client: Any, namespace: str) -> None:
    """If another program's key has the name of a shard's key, a call raises an error and changes nothing."""
    bench = Bench(RedisBackend(shared_client, Dialect(namespace)), 1)
    bench.put("a")
    shared_client.set(f"{{{namespace}:0}}:held", "not ours")
    with pytest.raises(StoreError, match="WRONGTYPE"):
        bench.store.counts()
    assert bench.states("a") == ["due"]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (redis.ResponseError("OOM command not allowed when used memory > 'maxmemory'."), StoreFull),
        (redis.exceptions.OutOfMemoryError("command not allowed"), StoreFull),
        (redis.exceptions.ReadOnlyError("You can't write against a read only replica."), StoreReadOnly),
        (redis.ResponseError("MISCONF Errors writing to the AOF file"), StoreReadOnly),
        (redis.exceptions.NoPermissionError("this user has no permissions"), StoreAuthError),
        (redis.AuthenticationError("invalid username-password pair"), StoreAuthError),
        (redis.exceptions.BusyLoadingError("Redis is loading the dataset in memory"), StoreUnavailable),
        (redis.ResponseError("BUSY Redis is busy running a script"), StoreUnavailable),
        (redis.ResponseError("NOREPLICAS Not enough good replicas to write."), StoreUnavailable),
        (redis.ResponseError("CLUSTERDOWN Hash slot not served"), StoreUnavailable),
        (redis.exceptions.ClusterDownError("The cluster is down"), StoreUnavailable),
        (redis.exceptions.ClusterError("TTL exhausted."), StoreUnavailable),
        (redis.exceptions.TryAgainError("Multiple keys request during rehashing of slot"), StoreUnavailable),
        (redis.exceptions.AskError("5 127.0.0.1:7001"), StoreUnavailable),
        (redis.exceptions.MovedError("6 127.0.0.1:7001"), StoreUnavailable),
        (redis.exceptions.MasterDownError("Link with MASTER is down"), StoreUnavailable),
        (redis.exceptions.SlotNotCoveredError('Slot "5" not covered by the cluster'), StoreUnavailable),
        (redis.exceptions.RedisClusterException("Redis Cluster cannot be connected"), StoreUnavailable),
        (redis.exceptions.MaxConnectionsError("Too many connections"), StoreUnavailable),
        (redis.TimeoutError("Timeout reading from socket"), StoreUnavailable),
        (ConnectionResetError(), StoreUnavailable),
        (redis.ResponseError("something new"), StoreError),
    ],
    ids=str,
)
def test_every_error_is_one_of_ours(error: Exception, kind: type[WheelSchedError]) -> None:
    """Each error of the client or server becomes an error of wheel-sched, with a text that explains it."""
    translated = faults.translate(error)
    assert type(translated) is kind
    assert len(str(translated)) > 40

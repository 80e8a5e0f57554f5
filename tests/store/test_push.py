"""A script claims due items and pushes each exactly once. An item that cannot be pushed is not lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from wheel_sched.errors import Rejected, StaleEpoch, StoreError
from wheel_sched.store import ServerPush
from wheel_sched.store.core.call import Call
from wheel_sched.store.core.items import Item, Outcome
from wheel_sched.store.core.settle import Dead
from wheel_sched.store.fair_shares import FairSettings, FairShares, fair_ref
from wheel_sched.store.memory import MemoryBackend
from wheel_sched.store.push import PushDue
from wheel_sched.store.push.push_form import decode_push, encode_push, split_note
from wheel_sched.store.redis.backend import RedisBackend
from wheel_sched.store.redis.round_trips import Dialect
from wheel_sched.testing.store_conformance import Bench

if TYPE_CHECKING:
    import redis


@pytest.fixture(params=["imitation", pytest.param("server", marks=pytest.mark.real)])
def client(request: pytest.FixtureRequest) -> redis.Redis:
    client: redis.Redis = request.getfixturevalue("shared_fake" if request.param == "imitation" else "shared_client")
    return client


@pytest.fixture
def bench(client: redis.Redis, namespace: str) -> Iterator[Bench]:
    bench = Bench(RedisBackend(client, Dialect(namespace)), 1)
    yield bench
    bench.check()


def stream_item(bench: Bench, item_id: str, target: str, *pieces: bytes) -> Item:
    return Item(item_id, bench.now_ms, encode_push("S", target, pieces or (b"id", item_id.encode())), "t", ("r",))


def list_item(bench: Bench, item_id: str, target: str) -> Item:
    return Item(item_id, bench.now_ms, encode_push("L", target, [item_id.encode()]))


def test_items_reach_their_streams_and_leave_the_store(bench: Bench, client: Any, namespace: str) -> None:
    """A push adds each item to its stream once, with all fields byte for byte. The item, its refs and its counts
    leave the store."""
    fields = (b"k\0", bytes(range(256)), b"", b"")
    bench.store.schedule([stream_item(bench, "a", "s", *fields), stream_item(bench, "b", "s")])
    pushed = ServerPush(bench.store).push(prefix=f"{namespace}/", create=True)
    assert (pushed.number, pushed.dues_ms, pushed.refused) == (0, [bench.now_ms] * 2, [])
    entries = [entry for _, entry in client.xrange(f"{namespace}/s")]
    assert entries == [{b"k\0": bytes(range(256)), b"": b""}, {b"id": b"b"}]
    assert bench.states("a", "b") == [None, None]
    assert bench.store.find("r") == []
    assert bench.store.counts().happened("completed") == 2


def test_a_note_stays_in_the_store(bench: Bench, client: Any, namespace: str) -> None:
    """A last field `store-note:` is not pushed. Elsewhere, or as the only field, it is an ordinary field."""
    note = (b"store-note:why", b"because")
    items = [(b"id", b"a", *note), (*note, b"id", b"b"), note]
    bench.store.schedule([stream_item(bench, f"{n}", "s", *pieces) for n, pieces in enumerate(items)])
    assert bench.store.get(["0"])[0].body.endswith(b"because")
    ServerPush(bench.store).push(prefix=f"{namespace}/", create=True)
    entries = [entry for _, entry in client.xrange(f"{namespace}/s")]
    assert entries == [{b"id": b"a"}, {note[0]: note[1], b"id": b"b"}, {note[0]: note[1]}]
    pushed = [split_note(decode_push(encode_push("S", "s", pieces)))[0] for pieces in items]
    assert pushed == [list(pieces) for pieces in (items[0][:2], items[1], note)]


def test_nothing_is_pushed_before_its_due(bench: Bench, client: Any, namespace: str) -> None:
    """A push 1 ms before an item's due time does not push the item."""
    item = list_item(bench, "a", "q")
    item.due_ms = bench.now_ms + 1
    bench.store.schedule([item])
    assert ServerPush(bench.store).push(prefix=f"{namespace}/").dues_ms == []
    assert client.exists(f"{namespace}/q") == 0
    bench.clock.advance(1)
    assert ServerPush(bench.store).push(prefix=f"{namespace}/").dues_ms == [bench.now_ms]


def test_a_repeat_pushes_nothing_twice(bench: Bench, client: Any, namespace: str) -> None:
    """A repeat of a push under the same token returns the same due times and pushes nothing.

    A refused item is due again when its lease ends.
    """
    bench.store.schedule([list_item(bench, "a", "q"), Item("b", bench.now_ms, b"no push form")])
    first = ServerPush(bench.store).push(prefix=f"{namespace}/", lease_ms=500, token="t")
    again = ServerPush(bench.store).push(prefix=f"{namespace}/", lease_ms=500, token="t")
    assert (first.dues_ms, again.dues_ms) == ([bench.now_ms], [bench.now_ms])
    assert client.lrange(f"{namespace}/q", 0, -1) == [b"a"]
    assert bench.states("b") == ["leased"]
    bench.clock.advance(500)
    assert [r.item.id for r in ServerPush(bench.store).push(prefix=f"{namespace}/").refused] == ["b"]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "push form"),
        (b"plain", "push form"),
        (b"S1;1:s", "push form"),
        (b"S1;1:s1:k", "push form"),
        (b"S1;1:s1:k9:v", "push form"),
        (b"S1;1:s1:k1:vtail", "push form"),
        (b"L1;1:q", "push form"),
        (b"X1;1:q1:v", "push form"),
        (b"S2;1:s1:k1:v", "push form"),
        (b"L1;99999999999999999999:q", "push form"),
        (encode_push("S", "absent", [b"k", b"v"]), "unknown topic"),
        (encode_push("S", "list", [b"k", b"v"]), "no stream: list"),
        (encode_push("L", "stream", [b"v"]), "no list: stream"),
        (encode_push("L", "text", [b"v"]), "no list: string"),
        (encode_push("S", "last", [b"k", b"v"]), "refused"),
    ],
)
def test_an_item_that_cannot_be_pushed_is_reported_and_kept(
    bench: Bench, client: Any, namespace: str, body: bytes, why: str
) -> None:
    """An item with a bad body or target is claimed and reported with the reason, and the caller settles it. Others
    are pushed."""
    client.rpush(f"{namespace}/list", "x")
    client.xadd(f"{namespace}/stream", {"a": "b"})
    client.set(f"{namespace}/text", "x")
    greatest = 2**64 - 1
    client.xadd(f"{namespace}/last", {"a": "b"}, id=f"{greatest}-{greatest}")
    bench.store.schedule([Item("bad", bench.now_ms, body, "t"), list_item(bench, "good", "list")])
    pushed = ServerPush(bench.store).push(prefix=f"{namespace}/")
    assert [(refused.item.id, refused.item.body) for refused in pushed.refused] == [("bad", body)]
    assert why in pushed.refused[0].reason
    assert pushed.dues_ms == [bench.now_ms]
    assert client.lrange(f"{namespace}/list", 0, -1) == [b"good", b"x"]
    assert client.get(f"{namespace}/text") == b"x"
    assert bench.states("bad", "good") == ["leased", None]
    bench.check()
    assert bench.store.settle(pushed, [Dead("bad", pushed.refused[0].reason)]).outcomes == [Outcome.DONE]
    assert bench.one("bad").body == body


@pytest.mark.parametrize("kind", ["S", "L"])
def test_nothing_is_pushed_to_our_own_keys_beside_topics(bench: Bench, client: Any, namespace: str, kind: Any) -> None:
    """A broker keeps a key for each published id. The script refuses a push to such a key, because a later publish
    with that id would then be taken for a repeat."""
    mark = f"{{{namespace}-orders}}:wheel-sched:sent:2:yy:orders"
    bench.store.schedule([Item("a", bench.now_ms, encode_push(kind, mark, [b"k", b"v"][: 2 if kind == "S" else 1]))])
    (refused,) = ServerPush(bench.store).push(create=True).refused
    assert "wheel-sched:" in refused.reason
    assert not client.exists(mark)


def test_streams_can_be_capped(bench: Bench, client: Any, namespace: str) -> None:
    """A push with `maxlen` trims its stream, approximately: the server removes only whole nodes of the stream's
    tree."""
    for _ in range(4):
        bench.store.schedule([stream_item(bench, f"i{n}", "s") for n in range(200)])
        assert len(ServerPush(bench.store).push(500, prefix=f"{namespace}/", create=True, maxlen=10).dues_ms) == 200
    assert client.xlen(f"{namespace}/s") < 400


def test_paused_topics_are_not_pushed(bench: Bench, namespace: str) -> None:
    """A push moves due items of a paused topic to held, as a claim does."""
    bench.store.schedule([stream_item(bench, "a", "s")])
    bench.store.pause("t")
    pushed = ServerPush(bench.store).push(prefix=f"{namespace}/", create=True)
    assert (pushed.dues_ms, pushed.refused, bench.states("a")) == ([], [], ["held"])


def test_a_fair_topic_is_pushed_by_the_shares_of_its_keys(bench: Bench, client: Any, namespace: str) -> None:
    """A push takes from each fair key in turn. A pushed item keeps its place until its attempt is reported."""
    shares = FairShares(bench.store)
    shares.configure("t", FairSettings(max_in_flight=4, ends="reported"))
    keys = ["a"] * 40 + ["b"] * 3
    items = [stream_item(bench, f"{key}{n:02}", "s") for n, key in enumerate(keys)]
    bench.store.schedule([replace(item, refs=(fair_ref(item.id[0]),)) for item in items])
    where = {"prefix": f"{namespace}/", "create": True}
    assert len(ServerPush(bench.store).push(20, **where).dues_ms) == 7
    pushed = [entry[b"id"].decode() for _, entry in client.xrange(f"{namespace}/s")]
    assert sorted(pushed) == ["a00", "a01", "a02", "a03", "b40", "b41", "b42"]
    assert ServerPush(bench.store).push(20, **where).dues_ms == []
    assert shares.finish(["a00", "a01", "b40"]) == 3
    assert len(ServerPush(bench.store).push(20, **where).dues_ms) == 2
    assert [entry[b"id"] for _, entry in client.xrange(f"{namespace}/s")][7:] == [b"a04", b"a05"]


def test_a_push_recovers_leases_and_obeys_the_epoch(bench: Bench, namespace: str) -> None:
    """A push recovers expired leases and checks the epoch in the same way as a claim."""
    bench.store.schedule([list_item(bench, "a", "q")])
    bench.claim(lease_ms=10)
    bench.clock.advance(10)
    bench.store.report_jump(0, 1, 5)
    (answer,) = bench.store.execute([Call(0, PushDue(10, 1000, f"{namespace}/", epoch=1))])
    assert isinstance(answer, StaleEpoch)
    assert len(ServerPush(bench.store).push(prefix=f"{namespace}/").dues_ms) == 1
    with pytest.raises(Rejected):
        ServerPush(bench.store).push(501)


@pytest.mark.real
def test_a_target_the_user_may_not_touch_loses_nothing(shared_client: Any, real_server: Any, namespace: str) -> None:
    """If the server's user may not write to a target, the script reports the item as refused and pushes the other
    items."""
    import redis

    shared_client.execute_command("ACL", "SETUSER", namespace, "on", ">pw", "+@all", f"~{{{namespace}:*", "~allowed*")
    try:
        with redis.Redis.from_url(real_server.url, username=namespace, password="pw") as narrow:
            bench = Bench(RedisBackend(narrow, Dialect(namespace)), 1)
            bench.store.schedule([list_item(bench, "a", "secret"), list_item(bench, "b", f"allowed-{namespace}")])
            pushed = ServerPush(bench.store).push()
            assert [refused.item.id for refused in pushed.refused] == ["a"]
            assert "secret" in pushed.refused[0].reason
            assert bench.states("a", "b") == ["leased", None]
            bench.check()
    finally:
        shared_client.execute_command("ACL", "DELUSER", namespace)


def test_memory_has_nothing_to_push_to() -> None:
    """A push from the memory store raises an error, and the item stays due."""
    bench = Bench(MemoryBackend(1, clock="test"), 1)
    bench.put("a")
    with pytest.raises(StoreError, match="one-script hand-over"):
        ServerPush(bench.store).push()
    assert bench.states("a") == ["due"]

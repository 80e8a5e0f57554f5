"""Ordering keys and flow control on the command line: it shows which messages are parked or delayed, and why.

The head of an ordering key is its failed message that is retried. Later messages of the key are parked behind the head.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from retry_topic import Connection, Message, connect
from retry_topic.consumer.retry_record import ordered_state, parked_message
from retry_topic.message import Source
from retry_topic.message.encoding import encode_body
from retry_topic.message.headers import RetryState
from retry_topic.release.flow import flow_of
from wheel_sched.store import Item, Outcome
from wheel_sched.store.ordering import OrderedKeys, Owner, lock_of, ref_of, route_of, scope_of
from wheel_sched.store.rate_limits import Limits, RateLimits

SCOPE = scope_of("billing", "orders")
LOCK = lock_of(SCOPE, b"customer-7")
FUTURE_MS = 4_000_000_000_000


@pytest.fixture
def sharded(redis_url: str) -> Iterator[Connection]:
    with connect(redis_url, shards=3) as connection:
        yield connection


@pytest.fixture
def line(sharded: Connection) -> tuple[str, list[str]]:
    """Lock an ordering key: its head waits, and two messages are parked behind it. Return the head's id and the ids of
    the parked messages."""
    locks = OrderedKeys(sharded.store)
    owner = Owner(SCOPE, "me", locks.acquire(SCOPE, "me", 60_000).epoch)
    items = []
    for number in range(3):
        message = Message("orders", b"%d" % number, b"customer-7", (), Source("orders", 0, f"{number}-0"))
        state = ordered_state("billing", message, RetryState(), LOCK)
        body = encode_body(parked_message("billing", message, state))
        items.append(
            (state.id_base, Item(f"{state.id_base}.0", FUTURE_MS, body, "orders", (ref_of(LOCK),), route_of(LOCK)))
        )
    locks.close(owner, [(LOCK, items[0][0], True, "customer-7")])
    sharded.store.schedule([items[0][1]])
    assert locks.park(owner, 10, [(LOCK, id_base, True, item) for id_base, item in items[1:]]) == [Outcome.HELD] * 2
    return items[0][1].id, [item.id for _, item in items[1:]]


def test_list_parked_shows_who_stands_in_line(cli: Any, line: tuple[str, list[str]]) -> None:
    """`list --parked` shows parked messages in order, with their ordering key."""
    assert [row["id"] for row in cli.objects("--shards", "3", "list", "--parked")] == line[1]
    lines = cli("--shards", "3", "list", "--parked").stdout.splitlines()
    assert len(lines) == 3
    assert "customer-7" in lines[1]
    assert cli.objects("--shards", "3", "list", "--parked", "--key", "other") == []
    assert "parked" in cli("--shards", "3", "show", line[1][0]).stdout
    cli("list", "--parked", "--dead", code=2)


def test_keys_are_listed_with_their_heads_and_released_by_hand(cli: Any, line: tuple[str, list[str]]) -> None:
    """`keys list` shows each lock with its key, head, head state and number of parked messages. After `keys release`,
    the next message is the head."""
    row = cli.json("--shards", "3", "keys", "list")
    assert (row["lock"], row["key"], row["head"], row["head_state"], row["parked"]) == (
        LOCK,
        "customer-7",
        line[0],
        "waiting",
        2,
    )
    assert "customer-7" in cli("--shards", "3", "keys", "list").stdout
    assert cli.json("--shards", "3", "keys", "release", LOCK, "--yes") == {"done": 1}
    assert cli.json("--shards", "3", "keys", "list")["head"] == line[1][0]
    assert "no such key" in cli("--shards", "3", "keys", "release", "x", "--yes", code=1).output


def test_deleting_the_head_lets_the_next_one_follow(cli: Any, line: tuple[str, list[str]]) -> None:
    """When the head of a key is deleted, the next parked message becomes the head and waits for its due time."""
    cli("--shards", "3", "delete", line[0], "--yes")
    row = cli.json("--shards", "3", "keys", "list")
    assert (row["head"], row["parked"]) == (line[1][0], 1)
    assert [found["id"] for found in cli.objects("--shards", "3", "list")] == [line[1][0]]


def test_a_filter_lets_nobody_out_of_the_line(cli: Any, line: tuple[str, list[str]]) -> None:
    """`run-now` with a filter selects no parked message. `run-now` with the id of a parked message selects this
    message."""
    assert cli.json("--shards", "3", "run-now", "--topic", "orders")["done"] == 1
    assert len(cli.objects("--shards", "3", "list", "--parked")) == 2
    assert cli.json("--shards", "3", "run-now", line[1][1])["done"] == 1
    assert [row["id"] for row in cli.objects("--shards", "3", "list", "--parked")] == line[1][:1]


def test_stats_tell_of_locked_keys_and_reshard_is_refused(cli: Any, line: tuple[str, list[str]]) -> None:
    """`stats` counts locked keys and parked messages. `reshard` is refused while a key is locked."""
    assert cli.json("--shards", "3", "stats")["ordered"] == {"locked_keys": 1, "parked": {"orders": 2}}
    assert "1 key locked, 2 messages parked" in cli("--shards", "3", "stats").stdout
    assert "ordering keys are closed" in cli("--shards", "3", "reshard", "2", "--yes", code=1).output


def test_stats_and_explain_tell_what_is_held_back(cli: Any, connection: Connection, wait_for: Any) -> None:
    """`stats` shows what a rate limit or a circuit delays. `policy explain --id` gives the reason for one message."""
    wait_for("a", FUTURE_MS)
    control = RateLimits(connection.store)
    limits = Limits(interval_us=60_000_000, burst=1, trip_ppm=500_000, of=2, within_ms=60_000, open_ms=60_000)
    flow = flow_of("billing", "orders")
    control.admit(flow, limits, [("api", 3)])
    control.report(flow, [("api", 0, 0, 5)])
    control.admit(flow, limits, [("api", 2)])
    control.spread(flow, 1_234)
    topic, circuit = sorted(cli.json("stats")["flows"], key=lambda row: row["destination"] or "")
    assert (topic["topic"], topic["granted"], topic["rate"], topic["interval_us"]) == (flow, 1, 2, 60_000_000)
    assert (circuit["destination"], circuit["circuit"], circuit["refused"]) == ("api", "open", 2)
    assert topic["spread"] == 1_234
    text = cli("stats").stdout
    assert f"{flow}: 1 released, 2 held back by the rate, 1,234 spread" in text
    assert "circuit open until" in text
    connection.store.reschedule(["a"], FUTURE_MS + 1_000)
    why = cli("policy", "explain", "--id", "a").stdout
    assert "flow control holds it back: " in why
    assert "one every 1m" in why
    assert "the circuit of destination api is open" in why


def test_policy_explain_says_what_flow_control_does(cli: Any, tmp_path: Any) -> None:
    """`policy explain` prints one line for each flow control setting of the topic."""
    file = tmp_path / "retry.toml"
    file.write_text('[topic.orders]\nrate = "5/s"\nspread = "10s"\nbudget = {}\nbreaker = { by = "x-host" }\n')
    text = cli("policy", "explain", str(file), "--topic", "orders").stdout
    for word in ("spread: ", "rate: at most 5/s", "budget: retries are at most 20%", "destination (header x-host)"):
        assert word in text

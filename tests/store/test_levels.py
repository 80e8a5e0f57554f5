"""Durability levels without a server: which servers are refused, what a write waits for, which writes are in doubt."""

from __future__ import annotations

import asyncio
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import fakeredis
import pytest
import redis

from wheel_sched.errors import ConfigError, InDoubt, StoreError, StoreUnavailable
from wheel_sched.store import open_async_store, open_store
from wheel_sched.store.core.call import Operation
from wheel_sched.store.core.delay_store import values_of
from wheel_sched.store.redis.backend import RedisBackend
from wheel_sched.store.redis.durability import Durability
from wheel_sched.store.redis.library import script_flags
from wheel_sched.store.redis.round_trips import Dialect
from wheel_sched.store.rooms import ROOMS

SAFE = {"appendonly": "yes", "appendfsync": "always", "no-appendfsync-on-rewrite": "no"}
# Scripts that write but do not wait for the level, and why: no acknowledged item is lost when such a write is lost.
NOT_WAITED_FOR = {
    "ClaimDue": "a lost lease is a redelivery",
    "Extend": "a lost lease is a redelivery",
    "PushDue": "the message is in its stream or in the store: both are written by one script",
    "Sweep": "it is done again",
    "Own": "another owner has another epoch",
    "OwnScope": "another owner has another epoch",
    "ReportJump": "it is seen again",
    "Admit": "rates start anew",
    "ReportResults": "circuits start anew",
    "CountSpread": "a figure for reports",
    "LookAtFlows": "a question",
    "LookAtHeads": "a question",
    "ListKeys": "a question",
    "CountParked": "a question",
    "CarryPlaces": "a place is free after a while",
    "FinishAttempts": "a place is free after a while",
    "PrepareDue": "it is done again",
    "Announce": "a member announces itself again",
    "Leave": "a lease ends by itself",
}
EACH_SECOND = SAFE | {"appendfsync": "everysec"}
NO_WAITAOF = redis.ResponseError("unknown command 'WAITAOF', with args beginning with: '1' '0'")  # Redis 7.0
AT_REST = b"aof_enabled:1\r\naof_rewrite_in_progress:0\r\naof_rewrite_scheduled:0\r\n"
REWRITING = AT_REST.replace(b"in_progress:0", b"in_progress:1")


@pytest.mark.parametrize(
    ("level", "info", "settings", "problem"),
    [
        (Durability("fsync"), {"redis_version": "7.0.9"}, SAFE, None),
        (Durability("fsync"), {"valkey_version": "9.1.2"}, EACH_SECOND, "appendfsync everysec: .* appendfsync always"),
        (Durability("fsync"), {}, SAFE | {"appendonly": "no"}, "CONFIG SET appendonly yes"),
        (Durability("fsync"), {}, SAFE | {"no-appendfsync-on-rewrite": "yes"}, "no-appendfsync-on-rewrite no"),
        (Durability("fsync"), {}, {}, "appendfsync unknown"),
        (Durability("fsync"), {}, redis.ResponseError("NOPERM"), r"NOPERM.* \+config\|get"),
        (Durability("fsync"), {"aof_rewrite_in_progress": 1, "aof_base_size": 0}, SAFE, "first append-only file"),
        (Durability("fsync"), {"aof_rewrite_scheduled": 1, "aof_base_size": 0}, SAFE, "first append-only file"),
        (Durability("fsync"), {"aof_rewrite_in_progress": 1, "aof_base_size": 9}, SAFE, None),
        (Durability("replicated"), {"connected_slaves": 1}, {}, None),
        (Durability("replicated"), {"connected_slaves": 0}, {}, "needs connected replicas: 1, this server has 0"),
        (Durability("replicated", 2), {"connected_slaves": 1}, {}, "replicas: 2"),
        (Durability("everysec"), {}, {}, None),
    ],
)
def test_a_level_the_server_cannot_keep_is_refused(
    level: Durability, info: dict[str, Any], settings: Any, problem: str | None
) -> None:
    """If the server's settings cannot keep the durability level, the server is refused. The error says what to
    change."""
    refusal = level.refusal(info, settings)
    if problem is None:
        assert refusal is None
        return
    assert refusal is not None
    with pytest.raises(StoreError, match=problem):
        raise refusal
    assert "nothing was changed" in str(refusal)


def test_a_server_that_is_making_its_first_file_may_be_asked_again() -> None:
    """While the server writes its first append-only file, the refusal is transient.

    `CONFIG SET appendonly yes` protects nothing before this file exists.
    """
    refusal = Durability("fsync").refusal({"aof_rewrite_in_progress": "1", "aof_base_size": "0"}, SAFE)
    assert isinstance(refusal, StoreUnavailable)


@pytest.mark.parametrize(
    ("level", "replies", "doubt"),
    [
        (
            Durability("fsync"),
            [
                None,
                [1, 0],
                [b"appendonly", b"yes", b"appendfsync", b"always", b"no-appendfsync-on-rewrite", b"no"],
                AT_REST,
            ],
            None,
        ),
        (Durability("fsync"), [None, [1, 0], SAFE, AT_REST.decode()], None),
        (Durability("fsync"), [None, [1, 0], EACH_SECOND, AT_REST], "before it has synced .appendfsync everysec"),
        (Durability("fsync"), [None, [1, 0], redis.ResponseError("NOPERM no config"), AT_REST], "confirmed .NOPERM"),
        (
            Durability("fsync"),
            [None, redis.ResponseError("cannot be used on replicas"), SAFE, AT_REST],
            "confirmed .cannot be",
        ),
        (Durability("fsync"), [None, redis.ResponseError("NOPERM waitaof"), SAFE, AT_REST], None),
        (
            Durability("fsync"),
            [None, redis.ResponseError("appendonly is disabled"), SAFE | {"appendonly": "no"}, AT_REST],
            "before it has synced .appendonly no.: redis-cli CONFIG SET appendonly yes",
        ),
        (Durability("fsync"), [None, [1, 0], SAFE, REWRITING], None),  # an ordinary rewrite: the file before it is kept
        (Durability("fsync"), [None, [0, 0], SAFE, REWRITING], "first append-only file"),
        (Durability("fsync"), [None, [0, 0], SAFE, AT_REST], "first append-only file"),
        (Durability("fsync"), [None, NO_WAITAOF, SAFE, AT_REST], None),
        (Durability("fsync"), [None, NO_WAITAOF, SAFE, REWRITING], "first append-only file"),
        (
            Durability("fsync"),
            [None, NO_WAITAOF, SAFE, AT_REST.replace(b"scheduled:0", b"scheduled:1")],
            "first append-only",
        ),
        (Durability("fsync"), [redis.ResponseError("OOM"), [1, 0], SAFE, AT_REST], "confirmed .OOM"),
        (Durability("fsync"), [redis.ResponseError("NOPERM eval"), [1, 0], SAFE, AT_REST], "confirmed .NOPERM eval"),
        (Durability("replicated", 2), [None, 2], None),
        (Durability("replicated", 2), [None, 1], "only 1 of 2"),
        (Durability("replicated"), [redis.ResponseError("NOSCRIPT"), 1], "could not be confirmed"),
    ],
)
def test_an_answer_that_confirms_too_little_is_in_doubt(
    level: Durability, replies: list[Any], doubt: str | None
) -> None:
    """A write that the server does not confirm at its level is in doubt. The error says to repeat it with the same
    token or id."""
    found = level.doubt(replies)
    if doubt is None:
        assert found is None
        return
    with pytest.raises(InDoubt, match=f"{doubt}.*same token or id"):
        raise found or AssertionError("expected a doubt")


@pytest.mark.parametrize(("reply_s", "confirm_ms"), [(None, 5_000), (30.0, 5_000), (5.0, 4_000), (0.001, 1)])
def test_a_confirmation_is_shorter_than_the_timeout_of_the_client(reply_s: float | None, confirm_ms: int) -> None:
    """The server waits for replicas for a shorter time than the client waits for the reply.

    If the client timed out first, its error could not say how many replicas confirmed.
    """
    with redis.Redis(socket_timeout=reply_s) as client:
        dialect = RedisBackend(client, Dialect("n", "replicated")).dialect
    assert dialect.level.confirmation("key")[-1] == ("WAIT", 1, confirm_ms)
    with pytest.raises(InDoubt, match=f"within {confirm_ms / 1000:g} s: "):
        raise dialect.level.doubt([None, 0]) or AssertionError("expected a doubt")


def test_a_write_that_failed_is_reported_before_one_in_doubt() -> None:
    """If a write failed on one shard and is in doubt on another, the failure is raised.

    If only the doubt were raised, a caller would believe that all shards were written.
    """
    doubt, refused = InDoubt("written, but"), StoreUnavailable("nothing was sent")
    for answers in ([doubt, refused], [1, refused, doubt]):
        with pytest.raises(StoreUnavailable, match="nothing was sent"):
            values_of(answers)
    with pytest.raises(InDoubt):
        values_of([1, doubt])


@pytest.mark.parametrize("values", [("paranoid", 1), ("replicated", 0), ("replicated", True)])
def test_an_unknown_level_is_refused(values: tuple[str, int]) -> None:
    """An unknown durability level or a wrong number of replicas is refused. The error names the known levels or the
    number."""
    with pytest.raises(ConfigError, match=r"everysec|replicas"):
        Dialect("n", *values)


def test_both_facades_refuse_a_server_without_config() -> None:
    """`open_store` and `open_async_store` refuse `fsync` on a server that has no command CONFIG, because the server's
    setting cannot be checked."""
    with pytest.raises(StoreError, match="'fsync'"):
        open_store(fakeredis.FakeRedis(), durability="fsync")
    with pytest.raises(StoreError, match="'fsync'"):
        asyncio.run(open_async_store(fakeredis.FakeAsyncRedis(), durability="fsync"))


def test_every_call_that_writes_protected_data_waits_for_its_level() -> None:
    """Of all operations of the store, those that write wait for the durability level, except the ones in
    `NOT_WAITED_FOR`.

    Operations that only read never wait.
    """
    modules = [import_module(f"wheel_sched.store.{room.folder}") for room in ROOMS]
    modules += [
        import_module(f"{package.__name__}.{one.name}")
        for package in tuple(modules)
        for one in iter_modules(package.__path__)
    ]
    found: dict[str, type[Operation[Any]]] = {
        name: one
        for module in modules
        for name, one in vars(module).items()
        if isinstance(one, type)
        and issubclass(one, Operation)
        and one.__module__ == module.__name__
        and hasattr(one, "script")  # the base classes have none
    }
    flags = script_flags()
    assert {one.script for one in found.values()} == flags.keys()
    assert all(one.reads == (flags[one.script] == "no-writes") for one in found.values())
    waiting = {name for name, one in found.items() if one.writes}
    writers = {name for name, one in found.items() if not one.reads}
    assert waiting == writers - NOT_WAITED_FOR.keys()
    assert NOT_WAITED_FOR.keys() <= writers
    assert {"Schedule", "Settle", "Change", "Pause", "RaiseCounts", "AcceptLogBatch", "Resolve", "ParkItems"} <= waiting

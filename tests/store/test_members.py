"""Announcers, and what a real server keeps of members."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from wheel_sched.errors import ConfigError, StoreError, StoreUnavailable
from wheel_sched.store import DelayStore, Member, Members, open_store
from wheel_sched.store.members import this_process
from wheel_sched.store.members.announcer import MemberAnnouncer, lease_for

if TYPE_CHECKING:
    import redis


@pytest.fixture
def store() -> Iterator[DelayStore]:
    with open_store("memory:") as opened:
        yield opened


def until(holds: Callable[[], object], what: str) -> None:
    until_s = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < until_s, what
        time.sleep(0.002)  # polls until the announcer's thread has made its call


def announcer_of(store: DelayStore, every_ms: int) -> MemberAnnouncer:
    member = Member("consumer", "billing")
    return MemberAnnouncer(lambda: store, lambda: member, every_ms)


def test_a_member_is_listed_until_its_announcer_stops(store: DelayStore) -> None:
    """The announcer announces its member at once, then again and again with new counts. `stop` removes the member."""
    counts = iter(range(1_000))
    member = this_process("consumer", "billing")
    announcer = MemberAnnouncer(lambda: store, lambda: replace(member, holds={"in_flight": next(counts)}), 10)
    announcer.start()
    until(lambda: [one.member.holds["in_flight"] > 2 for one in Members(store).live()] == [True], "no announcements")
    (found,) = Members(store).live()
    assert (found.member.kind, found.member.name) == ("consumer", "billing")
    assert found.member.pid > 0
    assert found.member.host
    assert found.member.version
    assert found.until_ms - found.seen_ms == lease_for(10)
    announcer.stop()
    assert Members(store).live() == []


def test_zero_switches_it_off(store: DelayStore) -> None:
    """With a period of 0 the announcer starts no thread and announces nothing."""
    threads = threading.active_count()
    announcer = announcer_of(store, 0)
    announcer.start()
    assert threading.active_count() == threads
    announcer.stop()
    assert Members(store).live() == []


@pytest.mark.parametrize("every_ms", [-1, 1.5, True, 43_200_001])
def test_a_period_out_of_bounds_is_refused(store: DelayStore, every_ms: int) -> None:
    """The period is a whole number of ms up to half a day: a longer one would need a lease of more than a day."""
    with pytest.raises(ConfigError, match="every_ms"):
        announcer_of(store, every_ms)


def test_an_outage_is_logged_once_and_survived(
    store: DelayStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While the store is away the announcer tries again, and logs one warning. Then the member is listed."""
    execute, away, refused = store.execute, threading.Event(), []

    def failing(calls: list[object]) -> list[object]:
        if away.is_set():
            refused.append(calls)
            raise StoreUnavailable("the server is away")
        return execute(calls)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "execute", failing)
    away.set()
    announcer = announcer_of(store, 5)
    with caplog.at_level(logging.WARNING):
        announcer.start()
        until(lambda: len(refused) > 5, "it did not try again")
        away.clear()
        until(lambda: Members(store).live(), "it was not announced when the store was back")
        announcer.stop()
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["members.not_announced"]


def test_counts_that_cannot_be_made_do_not_end_it(store: DelayStore, caplog: pytest.LogCaptureFixture) -> None:
    """When the function that makes the member raises, the announcer logs the error and tries again."""
    answers = iter([ValueError("no count")])

    def said() -> Member:
        for error in answers:
            raise error
        return Member("consumer", "billing")

    announcer = MemberAnnouncer(lambda: store, said, 5)
    announcer.start()
    until(lambda: Members(store).live(), "it gave up")
    announcer.stop()
    assert "ValueError: no count" in caplog.text


def test_a_stop_does_not_wait_for_a_store_that_hangs(store: DelayStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """`stop` returns within its bounded wait although the store does not answer."""
    hung = threading.Event()
    monkeypatch.setattr("wheel_sched.store.members.announcer._LEAVE_S", 0.05)
    monkeypatch.setattr(store, "execute", lambda calls: hung.wait(60))
    announcer = announcer_of(store, 5)
    announcer.start()
    began_s = time.monotonic()
    announcer.stop()
    assert time.monotonic() - began_s < 30
    hung.set()
    monkeypatch.setattr("wheel_sched.store.members.announcer._LEAVE_S", 30)
    announcer.stop()  # the announcer's thread logs an error, and ends before the next test


def test_the_server_forgets_members_that_nobody_looks_for(redis_url: str, redis_client: redis.Redis) -> None:
    """If all processes die, the keys of the members expire by themselves, without another call."""
    with open_store(redis_url, namespace="quiet") as store:
        Members(store).announce(Member("consumer", "long"), 5_000)
        Members(store).announce(Member("consumer", "short"), 100)
        keys = [b"{quiet:0}:members", b"{quiet:0}:announced"]
        for key in keys:
            assert 5_000 < redis_client.pttl(key) <= 6_000
        Members(store).announce(Member("consumer", "long"), 86_400_000)
        assert redis_client.pttl(keys[0]) > 80_000_000


def test_an_entry_that_cannot_be_read_hides_no_other(redis_url: str, redis_client: redis.Redis) -> None:
    """Another program has written into the keys of the members. The readable members are still listed."""
    with open_store(redis_url, namespace="damaged") as store:
        Members(store).announce(Member("consumer", "good"), 60_000)
        for number, value in enumerate(["", "1:2:", "1:2:[]", "x:y:{}", "1:2:{" + "[" * 10_000]):
            redis_client.zadd("{damaged:0}:members", {f"bad{number}": 9e12})
            redis_client.hset("{damaged:0}:announced", f"bad{number}", value)
        redis_client.zadd("{damaged:0}:members", {"absent": 9e12, "odd": 9e12})
        redis_client.hset(
            "{damaged:0}:announced", "odd", '1:2:{"kind": 7, "topics": "x", "holds": {"a": "b"}, "pid": []}'
        )
        found = {one.member.id: one.member for one in Members(store).live()}
        assert {member.name for member in found.values()} == {"good", ""}
        assert found["odd"] == Member("", "", id="odd")


@pytest.mark.parametrize("name", ["members", "announced"])
def test_a_key_of_another_type_stops_no_sweep(redis_url: str, redis_client: redis.Redis, name: str) -> None:
    """Another program has written a text under a key of the members. Announcing fails, but a sweep still works."""
    with open_store(redis_url, namespace="odd") as store:
        Members(store).announce(Member("consumer", "billing"), 1)
        redis_client.set(f"{{odd:0}}:{name}", "text")
        time.sleep(0.01)  # until the lease has ended by the server's clock
        store.sweep()
        with pytest.raises(StoreError):
            Members(store).announce(Member("consumer", "billing"), 60_000)

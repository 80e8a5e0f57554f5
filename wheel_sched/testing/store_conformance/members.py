"""Conformance tests of the members: who is live, what each member said last, and when a dead one is forgotten."""

# ruff: noqa: S101 - assertions are what a test-suite is made of

from __future__ import annotations

from dataclasses import replace

import pytest

from wheel_sched.errors import Rejected
from wheel_sched.store.core.call import Call
from wheel_sched.store.members import SHARD, ListMembers, Member
from wheel_sched.testing.store_conformance.bench import Bench

CONSUMER = Member(
    "consumer",
    "billing",
    topics=("orders", "billing.redelivery"),
    retries_to="billing.retry",
    holds={"in_flight": 3},
    host="web-1",
    pid=77,
    version="1.2.3",
    id="one",
)
SERVICE = Member("retry-service", "billing", takes_in=("billing.retry",), releases=True, id="two")
LEASE_MS = 15_000


class MemberCases:
    """Tests of the members: announcing, leaving, the end of leases, and what is stored."""

    def test_a_member_is_listed_as_it_announced_itself(self, bench: Bench) -> None:
        """`live` returns each field of a member, its start (`since_ms`) and its last announcement (`seen_ms`)."""
        assert bench.members.live() == []
        began_ms = bench.now_ms
        assert bench.members.announce(CONSUMER, LEASE_MS, age_ms=400) == began_ms + LEASE_MS
        bench.clock.advance(5_000)
        busy = replace(CONSUMER, holds={"in_flight": 8}, lateness=(5, 0, 2))
        bench.members.announce(busy, LEASE_MS, age_ms=5_400)
        (found,) = bench.members.live()
        assert found.member == busy
        assert (found.since_ms, found.seen_ms) == (began_ms - 400, began_ms + 5_000)
        assert found.until_ms == began_ms + 5_000 + LEASE_MS

    def test_a_member_is_live_until_its_lease_ends(self, bench: Bench) -> None:
        """A member that announces itself again stays live. A member whose lease has ended is not listed."""
        bench.members.announce(CONSUMER, LEASE_MS)
        bench.members.announce(SERVICE, LEASE_MS)
        bench.clock.advance(LEASE_MS - 1)
        bench.members.announce(SERVICE, LEASE_MS)
        assert {found.member.id for found in bench.members.live()} == {"one", "two"}
        bench.clock.advance(1)
        assert [found.member for found in bench.members.live()] == [SERVICE]

    def test_a_member_that_leaves_is_gone_at_once(self, bench: Bench) -> None:
        """`leave` returns whether the member was there. A member that announces itself again counts as new."""
        bench.members.announce(CONSUMER, LEASE_MS)
        assert [bench.members.leave("one"), bench.members.leave("one")] == [True, False]
        assert bench.members.live() == []
        bench.clock.advance(1_000)
        bench.members.announce(CONSUMER, LEASE_MS)
        assert [found.since_ms for found in bench.members.live()] == [bench.now_ms]

    @pytest.mark.parametrize("how", ["announcement", "sweep"])
    def test_dead_members_are_forgotten(self, bench: Bench, how: str) -> None:
        """Dead members are removed by the next announcement of any member or the next sweep, and then count as new."""
        bench.members.announce(CONSUMER, LEASE_MS)
        bench.clock.advance(LEASE_MS)
        if how == "sweep":
            bench.store.sweep()
        else:
            bench.members.announce(SERVICE, LEASE_MS)
        bench.clock.now_ms -= 1  # a step back of a few ms counts as no step: the lease has still ended
        assert CONSUMER not in [found.member for found in bench.members.live()]
        bench.clock.advance(2)
        bench.members.announce(CONSUMER, LEASE_MS)
        (found,) = [each for each in bench.members.live() if each.member == CONSUMER]
        assert found.since_ms == bench.now_ms

    def test_many_members_are_listed_page_by_page(self, bench: Bench) -> None:
        """All 1,100 members are listed. Half of the leases end at the same time, and a page ends among these."""
        for number in range(1_100):
            bench.members.announce(Member("consumer", "g", id=f"m{number:04}"), LEASE_MS + max(0, number - 550))
        assert {found.member.id for found in bench.members.live()} == {f"m{number:04}" for number in range(1_100)}

    def test_all_members_lie_in_one_shard(self, wide: Bench) -> None:
        """A namespace of several shards has one list of members."""
        for number in range(20):
            wide.members.announce(Member("consumer", "g", id=f"m{number}"), LEASE_MS)
        assert len(wide.members.live()) == 20
        pages = wide.store.execute([Call(shard, ListMembers()) for shard in range(3)])
        assert [len(page) for page in pages] == [20 if shard == SHARD else 0 for shard in range(3)]

    def test_names_may_be_hostile_and_long(self, bench: Bench) -> None:
        """Any text can be stored and read again. It is cut to 250 characters, so that no member can fill the store."""
        name = 'a\n:"\x1b[31m\ud800\u202e' + "x" * 10_000
        bench.members.announce(
            Member(name, name, topics=(name,) * 1_000, holds={name: 1}, host=name, id="h\x1b"), LEASE_MS
        )
        (found,) = bench.members.live()
        assert found.member.id == "h\x1b"
        assert found.member.kind == found.member.name == found.member.host == name[:250]
        assert found.member.topics == (name[:250],) * 100
        assert found.member.holds == {name[:250]: 1}

    @pytest.mark.parametrize("lease_ms", [0, -1, 86_400_001, 1.5])
    def test_a_lease_has_bounds(self, bench: Bench, lease_ms: int) -> None:
        """A lease that is no whole number of ms from 1 to a day is refused, and nothing is stored."""
        with pytest.raises(Rejected, match="lease_ms"):
            bench.members.announce(CONSUMER, lease_ms)
        assert bench.members.live() == []

    def test_a_member_needs_an_id(self, bench: Bench) -> None:
        """A member without an id is refused before anything is stored."""
        with pytest.raises(Rejected):
            bench.members.announce(Member("consumer", "g", id=""), LEASE_MS)
        assert bench.members.live() == []

"""Conformance tests of the death groups: exact counts through every way in which a letter dies and leaves."""

# ruff: noqa: S101 - assertions are what a test-suite is made of

from __future__ import annotations

import pytest

from wheel_sched.errors import Rejected
from wheel_sched.store.core.items import Item
from wheel_sched.store.core.settle import Dead
from wheel_sched.store.death_groups import EMPTY_FOR_MS, HOUR_MS, HOURS, MAX_GROUPS, OTHER_GROUP, DeathGroup
from wheel_sched.store.log_intake import Position
from wheel_sched.testing.store_conformance.bench import DAY_MS, Bench


def counts_of(bench: Bench) -> dict[tuple[str, str], tuple[int, int]]:
    """The letters now and all deaths so far, by topic and group. Asserts that each group read alone is the same."""
    deaths = bench.death_groups.groups()
    for one in deaths.groups:
        assert bench.death_groups.group(one.topic, one.group) == (one, deaths.now_ms)
    return {(one.topic, one.group): (one.count, one.ever) for one in deaths.groups}


def letter(item_id: str, died_ms: int, topic: str = "t", refs: tuple[str, ...] = ()) -> Item:
    return Item(item_id, died_ms, b"", topic, refs)


class DeathGroupCases:
    """Tests of the death groups: what a group is, what is counted, and what is forgotten."""

    def test_a_group_says_what_died_and_when(self, bench: Bench) -> None:
        """`groups` returns for each topic and error the letters, the deaths, their times and the last letter."""
        bench.bury("a", topic="t", reason="fatal: one")
        first_ms = bench.clock.now_ms
        bench.clock.advance(HOUR_MS)
        bench.bury("b", "c", topic="t", reason="fatal: two")
        bench.bury("d", topic="u", reason="fatal: one")
        deaths = bench.death_groups.groups()
        hours = [0] * HOURS
        hours[-2:] = [1, 2]
        assert deaths.groups[0] == DeathGroup("t", "fatal", 3, 3, first_ms, bench.now_ms, "c", tuple(hours))
        assert [(one.topic, one.count) for one in deaths.groups] == [("t", 3), ("u", 1)]
        assert (deaths.dead, deaths.uncounted, deaths.now_ms) == (4, 0, bench.now_ms)
        assert bench.death_groups.group("t", "fatal") == (deaths.groups[0], bench.now_ms)
        assert bench.death_groups.group("u", "none") == (None, bench.now_ms)

    def test_a_fingerprint_comes_before_the_reason(self, bench: Bench) -> None:
        """The group is the first ref `fp:X`. Without one it is the reason up to its colon, 64 characters at most."""
        for number, (refs, reason) in enumerate(
            [
                (("r", "fp:one", "fp:two"), "fatal: x"),
                (("xfp:one", "fp:"), "fatal: x"),
                ((), ""),
                ((), ": x"),
                ((), "no colon"),
                ((), "ä" * 70 + ": x"),
                ((), "0:12:x"),
            ]
        ):
            bench.store.bury([(letter(f"{number}", 5, "t:\n"[:2], refs), reason)])
        assert counts_of(bench) == {
            ("t:", group): (count, count)
            for group, count in {"one": 1, "fatal": 1, "": 2, "no colon": 1, "ä" * 64: 1, "0": 1}.items()
        }
        assert bench.store.delete_dead([f"{number}" for number in range(7)])
        assert {count for count, _ in counts_of(bench).values()} == {0}

    def test_every_way_to_die_is_counted(self, bench: Bench) -> None:
        """Settling, an intake from a log, lapsed leases, a burial and a restore each count a death once."""
        bench.bury("settled", topic="t", reason="settled")
        bench.put("poison", topic="t")
        bench.claim(lease_ms=10)
        bench.clock.advance(10)
        bench.store.sweep(lapse_cap=1)
        dead = [(letter("logged", 0, refs=("fp:x",)), "logged: y")]
        bench.log_intake.accept(Position("log", None, 1), [], dead)
        bench.store.bury([(letter("buried", 7), "buried")])
        bench.store.bury([(letter("buried", 7), "buried")])
        found = bench.one("buried")
        bench.store.delete_dead(["buried"])
        bench.store.restore([found])
        assert counts_of(bench) == {
            ("t", "settled"): (1, 1),
            ("t", "poison"): (1, 1),
            ("t", "x"): (1, 1),
            ("t", "buried"): (1, 2),
        }

    def test_every_way_to_leave_is_counted(self, bench: Bench) -> None:
        """A letter leaves its group when it is requeued, deleted or trimmed. The group stays listed."""
        bench.bury("requeued", "repaired", "deleted", "trimmed", "old", "stays", topic="t")
        due_ms = bench.now_ms + 5
        bench.store.requeue([("requeued", due_ms, None), ("repaired", due_ms, letter("repaired", 0, "u", ("fp:z",)))])
        assert counts_of(bench) == {("t", "broken"): (4, 6)}
        bench.store.requeue([("requeued", due_ms, None), ("none", due_ms, None)])
        bench.store.delete_dead(["deleted", "deleted"])
        assert counts_of(bench) == {("t", "broken"): (3, 6)}
        bench.store.sweep(dead_cap=1)
        assert counts_of(bench) == {("t", "broken"): (1, 6)}
        bench.clock.advance(DAY_MS)
        bench.store.sweep(dead_age_ms=DAY_MS)
        assert counts_of(bench) == {("t", "broken"): (0, 6)}
        bench.bury("again", topic="t")
        assert counts_of(bench) == {("t", "broken"): (1, 7)}

    def test_a_settlement_can_kill_and_trim(self, bench: Bench) -> None:
        """One call that buries letters and trims others changes the counts by both."""
        bench.bury("a", "b", topic="t", reason="one")
        bench.put("c", "d", topic="t")
        bench.store.settle(bench.claim(), [Dead("c", "one"), Dead("d", "two")], dead_cap=2)
        assert counts_of(bench) == {("t", "one"): (1, 3), ("t", "two"): (1, 1)}

    def test_a_repeated_settlement_counts_once(self, bench: Bench) -> None:
        """A repeat with the same token counts no death again. A settlement that comes too late counts none."""
        bench.put("a", topic="t")
        claim = bench.claim()
        for token in ("one", "one", "two"):
            bench.store.settle(claim, [Dead("a", "x")], token=token)
        assert counts_of(bench) == {("t", "x"): (1, 1)}

    def test_hours_pass(self, bench: Bench) -> None:
        """`by_hour` ends at the present hour. A death leaves it after a day, and an old death is not in it."""
        bench.store.bury([(letter("now", bench.now_ms), "x")])
        bench.store.bury([(letter("before", bench.now_ms - 3 * HOUR_MS), "x")])
        bench.store.bury([(letter("old", bench.now_ms - 2 * DAY_MS), "x")])
        (group,) = bench.death_groups.groups().groups
        assert (group.first_ms, group.last_ms, group.last_id) == (bench.now_ms - 2 * DAY_MS, bench.now_ms, "now")
        assert {at - HOURS + 1: number for at, number in enumerate(group.by_hour) if number} == {-3: 1, 0: 1}
        bench.clock.advance(21 * HOUR_MS)
        (group,) = bench.death_groups.groups().groups
        assert [at for at, number in enumerate(group.by_hour) if number] == [HOURS - 22]
        bench.store.bury([(letter("later", bench.now_ms), "x")])
        bench.clock.advance(3 * HOUR_MS)
        (group,) = bench.death_groups.groups().groups
        assert [at for at, number in enumerate(group.by_hour) if number] == [HOURS - 4]
        bench.clock.advance(30 * HOUR_MS)
        assert sum(bench.death_groups.groups().groups[0].by_hour) == 0

    def test_a_death_in_the_future_counts_as_now(self, bench: Bench) -> None:
        """A letter whose time of death has not come yet counts as a death of the present hour."""
        bench.store.bury([(letter("a", bench.now_ms + 99 * DAY_MS), "x")])
        (group,) = bench.death_groups.groups().groups
        assert (group.last_ms, group.by_hour[-1]) == (bench.now_ms, 1)

    def test_an_empty_group_is_forgotten(self, bench: Bench) -> None:
        """30 days after its last death a sweep forgets a group without letters. A group with letters stays."""
        bench.bury("a", "b", topic="t", reason="one")
        bench.bury("c", topic="t", reason="two")
        bench.store.delete_dead(["a", "c"])
        bench.clock.advance(EMPTY_FOR_MS - 1)
        bench.store.sweep()
        assert counts_of(bench) == {("t", "one"): (1, 2), ("t", "two"): (0, 1)}
        bench.clock.advance(1)
        bench.store.sweep()
        assert counts_of(bench) == {("t", "one"): (1, 2)}

    def test_the_groups_are_bounded(self, bench: Bench) -> None:
        """A shard with its most groups counts a new one as "(other)", unless it can remove an empty group.

        When such a letter is deleted, "(other)" loses it, even if a group of its own exists by then.
        """
        letters = [(letter(f"{n}", n), f"r{n}") for n in range(MAX_GROUPS)]
        bench.store.bury(letters)
        bench.store.bury([(letter("x", 5), "new"), (letter("y", 5), "newer: y")])
        counts = counts_of(bench)
        assert (len(counts), counts["", OTHER_GROUP]) == (MAX_GROUPS + 1, (2, 2))
        bench.store.delete_dead(["9", "3"])
        bench.store.bury([(letter("z", 5), "new")])
        bench.store.delete_dead(["x"])
        bench.store.bury([(letter("w", 5), "newer: w")])
        counts = counts_of(bench)
        assert (len(counts), counts["", OTHER_GROUP]) == (MAX_GROUPS + 1, (1, 2))
        assert (counts["t", "new"], counts["t", "newer"]) == ((1, 1), (1, 1))
        assert not {("t", "r3"), ("t", "r9")} & counts.keys()
        assert bench.death_groups.groups().uncounted == 0

    def test_groups_of_all_shards_are_added_up(self, wide: Bench) -> None:
        """A group is listed once, with the letters of all shards."""
        ids = [f"{n}" for n in range(30)]
        wide.store.bury([(letter(i, wide.now_ms - int(i)), "x") for i in ids])
        (group,) = wide.death_groups.groups().groups
        assert (group.count, group.ever, group.by_hour[-1]) == (30, 30, 30)
        assert (group.first_ms, group.last_ms, group.last_id) == (wide.now_ms - 29, wide.now_ms, "0")

    def test_a_recount_has_nothing_to_do(self, wide: Bench) -> None:
        """Letters that were counted when they died are not counted again."""
        wide.store.bury([(letter(f"{n}", n), "x") for n in range(9)])
        for shard in range(3):
            cursor = None
            while True:
                step = wide.death_groups.recount(shard, cursor)
                assert step.counted == 0
                cursor = step.cursor
                if cursor is None:
                    break
        assert counts_of(wide) == {("t", "x"): (9, 9)}

    @pytest.mark.parametrize("cursor", ["", "x", "[]", '["",0]', '["a",-1]', '["a","b"]', "[" * 9000, '{"a":1}'])
    def test_a_malformed_cursor_is_refused(self, bench: Bench, cursor: str) -> None:
        """`recount` refuses a text that is no cursor."""
        with pytest.raises(Rejected, match="cursor"):
            bench.death_groups.recount(0, cursor)

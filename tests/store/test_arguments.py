"""The arguments of the scripts that store items are those which the header of each script describes."""

from __future__ import annotations

import pytest

from wheel_sched.store import Fence, Item, Position
from wheel_sched.store.attempt_counts import ScheduleCounted
from wheel_sched.store.core.call import Argument
from wheel_sched.store.core.plans import Plans
from wheel_sched.store.core.schedule import Schedule, StoringOperation
from wheel_sched.store.core.settle import Done, Held
from wheel_sched.store.known_ids import ScheduleKnown
from wheel_sched.store.log_intake import AcceptLogBatch
from wheel_sched.store.recurring import Recur, SettleRecurring
from wheel_sched.store.writer_fence import ScheduleFenced, schedule_fenced

ITEMS = [Item("a", 5, b"x", "t"), Item("\udcff", None, b"", "t", ("r",), "way")]
TRIPLES: list[Argument] = [b"a", 5, b"1:0:0:tx", b"\xff", "", b"1:3:1:twayr"]


@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        (Schedule(ITEMS), TRIPLES),
        (ScheduleKnown(ITEMS, 60_000), [60_000, *TRIPLES]),
        (ScheduleFenced(ITEMS, Fence("w\xe9", 3)), [3, "w\xe9".encode(), *TRIPLES]),
        (ScheduleCounted(ITEMS, [("k", 2, 9_000)]), [2, *TRIPLES, b"k", 2, 9_000]),
        (
            AcceptLogBatch(Position("s", None, 7), ITEMS[:1], [(ITEMS[1], "bad")], [("k", 2, 9_000), ("l", 0, None)]),
            [b"s", "", 7, 1, 1, 1, *TRIPLES[:3], b"\xff", b"bad", TRIPLES[-1], b"k", 2, 9_000, b"l", 0],
        ),
        (
            SettleRecurring(8, [Recur("a", 7, b"y", version=3, occurrences=ITEMS[:1]), Done("b"), Held("c", "r")], 9),
            [8, 9, 1, 2, b"b", b"a", "n3", 7, b"0:0:0:y", b"c", "h", b"r", b"", 1, 1, *TRIPLES[:3]],
        ),
        (AcceptLogBatch(Position("s", 4, 7), [], token="t"), [b"s", 4, 7, 0, 0, 0]),
    ],
    ids=["plain", "known", "fenced", "counted", "log batch", "recurring", "empty log batch"],
)
def test_arguments_are_those_of_the_header(operation: StoringOperation, arguments: list[Argument]) -> None:
    """A text is sent as bytes, a number as a number, and an item as its id, its due time and the rest of its record."""
    assert operation.argv() == arguments


def test_two_calls_have_different_tokens() -> None:
    """Two equal calls have different tokens, so the server does not answer the second with the answer of the first."""
    assert ScheduleFenced(ITEMS, Fence("w")).token != ScheduleFenced(ITEMS, Fence("w")).token


def test_a_part_of_a_call_with_a_token_has_its_own_token() -> None:
    """A call is split into a part for each shard. The token of a part is the caller's token and the number of the
    part."""
    calls = next(schedule_fenced(Plans(3), [Item(str(n), 0, b"") for n in range(9)], Fence("w", 1), token="t"))
    assert [call.operation.token for call in calls] == ["t.0", "t.1", "t.2"]
    assert {call.shard for call in calls} == {0, 1, 2}
    assert all(call.operation.argv()[:2] == [1, b"w"] for call in calls)

"""The ledger of a partition, and that its text tells a successor all it needs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from retry_topic.brokers.kafka.ledger import MAX_TEXT, Ledger
from retry_topic.message import Message

MESSAGE = Message("t", b"")


def admitted(ledger: Ledger, *offsets: int) -> list[int | None]:
    """How often each was handed out now, None = it was settled."""
    entries = [ledger.admit(offset, MESSAGE, 0) for offset in offsets]
    return [None if entry is None else entry.deliveries for entry in entries]


def test_the_committed_offset_is_the_first_that_is_not_settled() -> None:
    """Settling out of order moves it only when the front is settled; gaps of the log are no obstacle."""
    ledger = Ledger(5)
    assert admitted(ledger, 5, 6, 9) == [1, 1, 1]
    assert ledger.account() == (5, "w1:5.2,")
    ledger.settle(6)
    assert ledger.account()[0] == 5
    ledger.settle(5)
    assert ledger.account()[0] == 9
    ledger.settle(9)
    assert ledger.account() == (10, "")


def test_a_successor_knows_what_was_settled_and_what_was_handed_out() -> None:
    """What was settled behind the offset does not come again, what was in hand comes with its count raised."""
    ledger = Ledger(0)
    admitted(ledger, 0, 1, 2, 3)
    ledger.settle(1)
    ledger.settle(3)
    successor = Ledger(*ledger.account())
    assert admitted(successor, 0, 1, 2, 3, 4) == [2, None, 2, None, 1]


def test_what_is_given_back_in_good_order_is_not_counted() -> None:
    """A rebalance is not the record's fault."""
    ledger = Ledger(0)
    admitted(ledger, 0, 1)
    ledger.settle(1)
    successor = Ledger(*ledger.account(counted=False))
    assert admitted(successor, 0, 1) == [1, None]


def test_settling_can_be_taken_back() -> None:
    """The transaction it was part of was aborted."""
    ledger = Ledger(0)
    admitted(ledger, 0)
    assert ledger.settle(0)
    assert not ledger.settle(0)
    ledger.unsettle(0)
    assert ledger.account()[0] == 0


def test_foreign_texts_and_cut_ones_cost_repeats_only() -> None:
    """Whatever stands beside the offset, records come."""
    for text in ("", "somebody else's", "w1:", "w1:x.y,", "w1:3.0"):
        assert admitted(Ledger(0, text), 0)[0] in (1, None)
    assert admitted(Ledger(0, "somebody else's 3.0"), 0) == [1]


def test_a_text_is_never_longer_than_a_broker_takes() -> None:
    """Every other record settled makes the longest; what does not fit is handed out again."""
    ledger = Ledger(0)
    admitted(ledger, *range(4_000))
    for offset in range(1, 4_000, 2):
        ledger.settle(offset)
    offset, text = ledger.account()
    assert (offset, len(text) <= MAX_TEXT) == (0, True)
    assert admitted(Ledger(offset, text), 0, 1, 3_999) == [2, None, 1]


@given(
    gaps=st.lists(st.integers(1, 3), min_size=1, max_size=30),
    settled=st.sets(st.integers(0, 29)),
    seen=st.integers(0, 30),
    again=st.sets(st.integers(0, 29)),
)
def test_no_handing_over_loses_or_repeats_a_record(
    gaps: list[int], settled: set[int], seen: int, again: set[int]
) -> None:
    """Over two successors: what is settled never comes again, all else does, each time with its count raised."""
    offsets = [sum(gaps[: n + 1]) for n in range(len(gaps))]
    first = Ledger(0)
    admitted(first, *offsets)
    done = {offset for n, offset in enumerate(offsets) if n in settled}
    for offset in done:
        first.settle(offset)
    second = Ledger(*first.account())
    rest = [offset for offset in offsets if offset >= second.position]
    looked, later = rest[:seen], rest[seen:]
    assert admitted(second, *looked) == [None if offset in done else 2 for offset in looked]
    more = {offset for n, offset in enumerate(looked) if n in again} - done
    for offset in more:
        second.settle(offset)
    third = Ledger(*second.account())
    counts = dict.fromkeys(looked, 3) | dict.fromkeys(later, 2)
    left = [offset for offset in rest if offset >= third.position]
    assert {*rest} - {*left} <= done | more
    assert admitted(third, *left) == [None if offset in done | more else counts[offset] for offset in left]

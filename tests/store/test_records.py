"""Records and operations as values. Reading returns what was written, and unreadable bytes raise an error."""

from __future__ import annotations

import contextlib
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheel_sched.errors import Rejected, StoreError
from wheel_sched.store.core.call import bounded_reason, new_token
from wheel_sched.store.core.change import Alteration, Change
from wheel_sched.store.core.claim import ClaimDue
from wheel_sched.store.core.items import Item, Outcome, decode_text, encode_text, make_tail, read_record
from wheel_sched.store.core.schedule import Schedule
from wheel_sched.store.core.settle import Dead, Done, Held, Next, Settle
from wheel_sched.store.push.push_form import decode_push, encode_push

texts = st.binary(max_size=20).map(decode_text)
lines = texts.filter(lambda text: text and "\n" not in text)


@given(
    version=st.integers(0, 2**53),
    topic=texts,
    route=st.none() | texts.filter(bool),
    refs=st.lists(lines, max_size=3).map(tuple),
    body=st.binary(max_size=40),
)
def test_a_record_is_read_as_it_was_written(
    version: int, topic: str, route: str | None, refs: tuple[str, ...], body: bytes
) -> None:
    """A record is read as it was written, for any bytes in topic, route, refs and body."""
    raw = b"1:%d:%s" % (version, make_tail(topic, route, refs, body))
    assert read_record(raw) == (version, topic, route, refs, body)


@given(st.binary(max_size=600))
def test_any_bytes_are_a_text(raw: bytes) -> None:
    """An id of any bytes survives the conversion to text and back."""
    assert encode_text(decode_text(raw)) == raw


@given(st.binary(max_size=60))
def test_other_bytes_are_no_record(raw: bytes) -> None:
    """Any bytes are read as a record or raise an error of wheel-sched. No other exception escapes."""
    with contextlib.suppress(StoreError):
        assert read_record(raw).version >= 0


@pytest.mark.parametrize("raw", [b"", b"1:", b"2:1:0:0:0:", b"1:x:0:0:0:", b"1:1:0:0:", b"\xff" * 30])
def test_a_damaged_record_is_an_error(raw: bytes) -> None:
    """Reading a damaged record raises an error with the record's length and first bytes."""
    with pytest.raises(StoreError, match="unreadable record"):
        read_record(raw)


@given(
    kind_and_pieces=st.one_of(
        st.tuples(st.just("L"), st.lists(st.binary(max_size=9), min_size=1, max_size=1)),
        st.tuples(st.just("S"), st.lists(st.binary(max_size=9), min_size=1, max_size=4).map(lambda p: p * 2)),
    ),
    target=texts.filter(bool),
)
def test_a_push_form_is_read_as_it_was_written(kind_and_pieces: tuple[str, list[bytes]], target: str) -> None:
    """A push form is read as it was written, for targets and pieces of any bytes."""
    kind, pieces = kind_and_pieces
    assert kind in ("L", "S")
    form = decode_push(encode_push("L" if kind == "L" else "S", target, pieces))
    assert form == (kind, target, pieces)


@given(st.binary(max_size=40))
def test_other_bytes_are_no_push_form(raw: bytes) -> None:
    """Any bytes are read as a push form or raise `Rejected`. No other exception escapes."""
    try:
        form = decode_push(raw)
    except Rejected:
        return
    assert form.kind in ("S", "L")


def test_tokens_are_unique_also_after_a_fork() -> None:
    """A forked child makes other tokens than its parent. Otherwise the server would take the child's calls for
    repeats."""
    tokens = [new_token() for _ in range(1000)]
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:  # pragma: no cover - the child
        os.write(write, new_token().encode())
        os._exit(0)
    os.waitpid(pid, 0)
    child = os.read(read, 100).decode()
    os.close(read)
    os.close(write)
    assert len(set(tokens)) == 1000
    assert child[:16] != tokens[0][:16]


def test_schedule_sends_triples() -> None:
    """`Schedule` sends each item as three arguments: its id, its due time or nothing, and the rest of its record."""
    call = Schedule([Item("a", 5, b"x", "t"), Item("b", None, b"", "", ("r", "s"), "q")])
    assert call.argv() == [b"a", 5, b"1:0:0:tx", b"b", "", b"0:1:3:qr\ns"]


def test_settle_sends_the_done_first_and_answers_in_order() -> None:
    """The script gets the ids of `Done` first. `settle` returns the outcomes in the order of the settlements."""
    call = Settle(7, [Next("n", None), Done("a"), Dead("d", "x\ny", b"b"), Done("b"), Held("h", "w")], dead_cap=3)
    assert call.argv() == [
        *(7, 3, 2, b"a", b"b"),
        *(b"n", "n", "", b""),
        *(b"d", "d", b"x y", b"0:0:0:b"),
        *(b"h", "h", b"w", b""),
    ]
    outcomes = call.parse([b"otcot", 9, -1, 8], 0).outcomes  # of a, b, n, d, h
    done, stale = Outcome.DONE, Outcome.STALE
    assert outcomes == [Outcome.CANCELLED, done, done, stale, stale]


def test_change_sends_quintuples() -> None:
    """`Change` sends each change as five arguments. Without a version it applies to any version. A reason is sent
    as one line."""
    item = Item("b", 3, b"x")
    call = Change([Alteration("a", "r", 5), Alteration("b", "p", 3, 2, item), Alteration("c", "h", "x\ny")])
    assert call.argv() == [b"a", "r", 5, "", b"", b"b", "p", 3, 2, b"0:0:0:x", b"c", "h", b"x y", "", b""]


def test_claim_reads_the_answer_of_the_script() -> None:
    """The answer of the claim script has the claim's number, the time, the epoch, the next due time, the next lease
    end, and the processor time.

    Then follow the id, the due time and the record of each item.
    """
    claim = ClaimDue(2, 1000).parse([4, 9000, 2, -1, 10, 70, b"\xff", 8, b"1:3:1:0:0:tbody"], 1)
    assert (claim.shard, claim.number, claim.epoch, claim.due_head_ms, claim.lease_head_ms) == (1, 4, 2, None, 10)
    assert claim.script_us == 70
    (item,) = claim.items
    assert (item.id, item.due_ms, item.version, item.topic, item.body) == ("\udcff", 8, 3, "t", b"body")


def test_a_reason_is_one_bounded_line() -> None:
    """Any text of an exception becomes a reason of one line and bounded length, even text that UTF-8 cannot encode."""
    assert bounded_reason("a\nb") == b"a b"
    assert len(bounded_reason("é" * 10_000)) == 1000
    assert bounded_reason("\ud800") == b"\\ud800"

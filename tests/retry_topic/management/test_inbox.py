"""The dead-letter inbox: the state of a group of dead letters, how its errors differ, its letters and its notes."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retry_topic import Connection, connect
from retry_topic.management.inbox.error_diff import ErrorPart, error_parts
from retry_topic.management.inbox.groups import group_of, is_rising, state_of
from retry_topic.management.inbox.members import group_members
from retry_topic.management.inbox.notes import GroupNote, GroupNotes
from wheel_sched.errors import NotDone
from wheel_sched.store import DeathGroups, Documents, Found, Item, open_store


@pytest.mark.parametrize(
    ("mark", "last_ms", "state"),
    [
        ("", 50, "new"),
        ("", 150, "new"),
        ("acknowledged", 50, "acknowledged"),
        ("acknowledged", 150, "acknowledged"),
        ("fixed", 50, "fixed"),
        ("fixed", 100, "fixed"),
        ("fixed", 101, "regressed"),
    ],
)
def test_the_state_is_what_a_person_has_set_but_a_later_death_shows(mark: str, last_ms: int, state: str) -> None:
    assert state_of(GroupNote("t", "g", mark, marked_ms=100), last_ms) == state  # type: ignore[arg-type]


def test_a_rise_is_more_than_three_times_the_mean_and_more_than_ten() -> None:
    assert is_rising([0] * 23 + [11])
    assert not is_rising([0] * 23 + [10])
    assert is_rising([4] * 23 + [13])
    assert not is_rising([4] * 23 + [12])


def test_errors_that_differ_in_a_number_differ_only_there() -> None:
    parts = error_parts(["order 17 of ann timed out", "order 9 of ann timed out", "order 17 of bob timed out"])
    assert parts == [
        ErrorPart("order "),
        ErrorPart("", ("17", "9")),
        ErrorPart(" of "),
        ErrorPart("", ("ann", "bob")),
        ErrorPart(" timed out"),
    ]


@pytest.mark.parametrize("texts", [[], [""], ["same", "same"], ["a" * 10_000 + " b"]])
def test_equal_errors_have_no_varying_part(texts: list[str]) -> None:
    assert all(not part.values for part in error_parts(texts))


def test_a_part_that_only_some_errors_have_varies_too() -> None:
    assert error_parts(["a b", "a b c", "a b d"]) == [ErrorPart("a b"), ErrorPart("", ("", " c", " d"))]
    assert error_parts(["x", "y"]) == [ErrorPart("", ("x", "y"))]


def test_many_values_are_counted() -> None:
    (_, varying) = error_parts([f"no {number}" for number in range(12)])
    assert (len(varying.values), varying.more) == (5, 7)


@given(st.lists(st.text("ab 1.\n\x1b<", max_size=12), max_size=6))
def test_the_parts_make_up_each_error(texts: list[str]) -> None:
    """`error_parts` splits errors into common texts and varying values. These parts make up each error again."""
    parts = [part.values or (part.text,) for part in error_parts(texts)]
    if all(len(values) <= 4 for values in parts) and len(parts) < 8:
        made = {"".join(choice) for choice in product(*parts)}
        assert {"".join(texts[at]) for at in range(len(texts))} <= made


def found(reason: str = "", *refs: str) -> Found:
    return Found("a", "dead", 1, 1, "orders", b"", reason, refs)


@pytest.mark.parametrize(
    "one",
    [
        found("max-attempts: x", "customer", "fp:aaaa", "fp:bbbb"),
        found("max-attempts: x", "fp:"),
        found("max-attempts: x"),
        found("no colon"),
        found(""),
        found("ü" * 100 + ": x"),
        found("\udcff: x"),
    ],
)
@pytest.mark.parametrize("address", ["memory:", pytest.param("server", marks=pytest.mark.real)])
def test_the_group_of_a_letter_is_the_one_that_the_store_counts(
    one: Found, address: str, request: pytest.FixtureRequest
) -> None:
    address = request.getfixturevalue("redis_url") if address == "server" else address
    with open_store(address) as store:
        store.restore([one])
        (counted,) = DeathGroups(store).groups().groups
        (stored,) = store.list_items("dead").found
    assert (counted.topic, counted.group) == (stored.topic, group_of(stored))


@pytest.fixture
def connection() -> Connection:
    return connect("memory:")


def test_the_letters_of_a_group_are_found_by_their_fingerprint_and_by_their_reason(connection: Connection) -> None:
    """At most 20 letters are found, the last one first. Letters of other topics, and waiting items with the same ref,
    are left out."""
    store = connection.store
    with connection:
        for number in range(40):
            refs = ("fp:aaaa",) if number % 2 else ()
            store.bury([(Item(f"n{number}", 1_000 + number, b"x", "orders", refs), "poison: lapsed")])
        store.bury([(Item("elsewhere", 9_000, b"x", "payments", ("fp:aaaa",)), "poison")])
        store.schedule([Item("alive", 9_000, b"x", "orders", ("fp:aaaa",))])
        assert [one.id for one in group_members(connection, "orders", "aaaa", "n39")] == [
            f"n{number}" for number in range(39, 0, -2)
        ]
        assert [one.id for one in group_members(connection, "orders", "poison")][:2] == ["n38", "n36"]
        assert group_members(connection, "orders", "no\nref") == []


def test_a_note_that_somebody_has_changed_is_not_overwritten(connection: Connection) -> None:
    with connection:
        notes = GroupNotes(connection.store)
        seen = notes.get("orders", "aaaa")
        notes.write(seen, "first", "", "ada")
        with pytest.raises(NotDone, match="somebody has changed the note"):
            notes.mark(seen, "fixed", "bob")
        note = notes.mark(notes.get("orders", "aaaa"), "fixed", "bob")
        assert (note.text, note.mark, note.marked_by, note.noted_by) == ("first", "fixed", "bob", "ada")
        assert notes.all() == {("orders", "aaaa"): note}


def test_a_note_of_another_release_is_left_out(connection: Connection) -> None:
    with connection:
        Documents(connection.store).put("group-notes", "x", b'{"topic": "t", "group": "g", "mark": "snoozed"}')
        assert GroupNotes(connection.store).all() == {}

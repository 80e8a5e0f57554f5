"""The queue of overdue jobs. Entries come in order of due time and name, whatever is added and discarded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from wheel_sched_apscheduler.stores.memory import MisfireQueue

steps = st.lists(
    st.tuples(st.just("add"), st.integers(-3, 3), st.sampled_from("abcdef"))
    | st.tuples(st.just("discard"), st.integers(0, 20), st.just(""))
    | st.tuples(st.just("take"), st.integers(-4, 4), st.just("")),
    max_size=60,
)


@given(steps, st.integers(1, 4))
def test_it_is_a_sorted_list(steps: list[tuple[str, int, str]], limit: int) -> None:
    """The queue gives the same answers as a sorted list, after each step."""
    overdue: MisfireQueue[tuple[int, str]] = MisfireQueue()
    model: list[tuple[int, str]] = []
    for what, number, name in steps:
        if what == "add" and (number, name) not in model:
            overdue.add(number, name, (number, name))
            model = sorted([*model, (number, name)])
        elif what == "discard" and model:
            overdue.discard(*model.pop(number % len(model)))
        elif what == "take":
            due = [entry for entry in model if entry[0] <= number][:limit]
            assert overdue.take(number, limit) == due
            model = [entry for entry in model if entry not in due]
        assert overdue.head() == (model[0][0] if model else None)
    overdue.clear()
    assert overdue.head() is None


def test_what_comes_and_goes_leaves_nothing() -> None:
    """Ten thousand entries that were added and discarded leave a short heap."""
    overdue: MisfireQueue[int] = MisfireQueue()
    overdue.add(-1, "head", 0)
    for due in range(10_000):
        overdue.add(due, "a", due)
        overdue.discard(due, "a")
    assert len(overdue._heap) < 200
    assert overdue.take(20_000, 5) == [0]

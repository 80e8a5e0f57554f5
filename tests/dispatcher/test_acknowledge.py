"""A publisher acknowledges the items of a batch singly, and the last acknowledgement ends the batch.

To find out whether it is the last, an acknowledgement does not search the answers of the whole batch.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from wheel_sched.dispatcher import Batch
from wheel_sched.store import Claim, Claimed, Done

COUNT = 2_000


class Counting(list[Any]):
    """A list of answers that counts its reads."""

    looks = 0

    def __getitem__(self, place: Any) -> Any:
        self.looks += 1
        return super().__getitem__(place)

    def __iter__(self) -> Any:
        raise AssertionError("somebody looks through all of them")


def batch_of(count: int, answered: list[Batch]) -> Batch:
    items = [Claimed(str(n), 0, 1, "", b"") for n in range(count)]
    batch = Batch(Claim(0, 1, 0, 1, None, None, []), items)
    batch.on_answered = answered.append
    return batch


def orders(count: int) -> dict[str, Sequence[int]]:
    places = list(range(count))
    return {
        "forwards": places,
        "backwards": places[::-1],
        "at random": random.Random(1).sample(places, count),
        "first last": [*places[1:], 0],
    }


@pytest.mark.parametrize("order", orders(1))
def test_every_answer_is_passed_once_in_all(order: str) -> None:
    """2,000 acknowledgements, in any order, read at most two answers each on average. Only the last calls
    `on_answered`."""
    answered: list[Batch] = []
    batch = batch_of(COUNT, answered)
    batch.answers = answers = Counting([None] * COUNT)
    *places, last = orders(COUNT)[order]
    for place in places:
        batch.acknowledge(place, Done(str(place)))
    assert answered == []
    batch.acknowledge(last, Done(str(last)))
    assert answered == [batch]
    assert answers.looks <= 2 * COUNT


def test_answers_filled_in_place_count_as_well() -> None:
    """A publisher may write answers into `batch.answers`, but it must acknowledge the last one, which ends the
    batch."""
    answered: list[Batch] = []
    batch = batch_of(3, answered)
    batch.acknowledge(2, Done("2"))
    batch.answers[0] = Done("0")
    assert answered == []
    batch.acknowledge(1, Done("1"))
    assert answered == [batch]
    batch.acknowledge(1, Done("1"))  # a repeat calls `on_answered` again
    assert answered == [batch, batch]


def test_threads_that_acknowledge_at_once_never_leave_it_unreported() -> None:
    """If four threads acknowledge at once, at least one calls `on_answered`, so the batch does not wait for ever."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(100):
            answered: list[Batch] = []
            batch = batch_of(40, answered)
            start = threading.Barrier(4)

            def work(first: int, batch: Batch = batch, start: threading.Barrier = start) -> None:
                start.wait(30)
                for place in range(first, 40, 4):
                    batch.acknowledge(place, Done(str(place)))

            threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)
            assert answered
            assert all(one is batch for one in answered)
    finally:
        sys.setswitchinterval(interval)

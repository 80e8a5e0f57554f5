"""What was read a moment ago is not read again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from wheel_sched.dashboard.recent import Recent


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_ten_who_ask_cost_one_reading() -> None:
    """All callers get the same value while it is fresh. When it is too old, the next caller reads a new value."""
    clock, made, start = Clock(), [], Barrier(10)
    recent = Recent(clock)

    def ask(_: int) -> bytes:
        start.wait()
        return recent.get("page", 1.0, lambda: made.append(1) or b"%d" % len(made))

    with ThreadPoolExecutor(10) as pool:
        assert set(pool.map(ask, range(10))) == {b"1"}
        clock.now_s = 0.99
        assert recent.get("page", 1.0, lambda: b"new") == b"1"
        clock.now_s = 1.0
        assert recent.get("page", 1.0, lambda: b"new") == b"new"


def test_values_of_other_keys_are_not_shared() -> None:
    """A value that belongs to one visitor's key is not given to another visitor."""
    recent = Recent(Clock())
    assert recent.get(("page", "ada"), 1.0, lambda: "for ada") == "for ada"
    assert recent.get(("page", "bob"), 1.0, lambda: "for bob") == "for bob"


def test_an_error_is_not_kept() -> None:
    """After an error the next caller reads again."""
    recent = Recent(Clock())
    with pytest.raises(OSError, match="away"):
        recent.get("page", 1.0, lambda: (_ for _ in ()).throw(OSError("away")))
    assert recent.get("page", 1.0, lambda: "back") == "back"


def test_the_number_of_values_is_bounded() -> None:
    """If there are too many keys, the oldest values are dropped. They are read again when a caller asks for them."""
    recent = Recent(Clock())
    for number in range(300):
        recent.get(number, 1.0, lambda: "x")
    assert recent.get(0, 1.0, lambda: "again") == "again"
    assert recent.get(299, 1.0, lambda: "again") == "x"

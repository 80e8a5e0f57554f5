"""Live pages are rendered once for all who watch them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from wheel_sched.dashboard.live import LiveFragments


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_ten_viewers_cost_one_rendering_a_second() -> None:
    """All who ask within the time get one rendering; the next one comes when it is too old."""
    clock, made, start = Clock(), [], Barrier(10)
    fragments = LiveFragments(1.0, clock)

    def watch(_: int) -> bytes:
        start.wait()
        return fragments.get("page", lambda: made.append(1) or b"%d" % len(made))

    with ThreadPoolExecutor(10) as pool:
        assert set(pool.map(watch, range(10))) == {b"1"}
        clock.now_s = 0.99
        assert fragments.get("page", lambda: b"new") == b"1"
        clock.now_s = 1.0
        assert fragments.get("page", lambda: b"new") == b"new"


def test_visitors_do_not_see_each_others_fragments() -> None:
    fragments = LiveFragments(1.0, Clock())
    assert fragments.get(("page", "ada"), lambda: b"for ada") == b"for ada"
    assert fragments.get(("page", "bob"), lambda: b"for bob") == b"for bob"


def test_an_error_is_not_kept() -> None:
    """The next caller tries again."""
    fragments = LiveFragments(1.0, Clock())
    with pytest.raises(OSError, match="away"):
        fragments.get("page", lambda: (_ for _ in ()).throw(OSError("away")))
    assert fragments.get("page", lambda: b"back") == b"back"


def test_the_number_of_pages_is_bounded() -> None:
    """Of many pages the oldest leave; they are rendered again when somebody asks."""
    fragments = LiveFragments(1.0, Clock())
    for number in range(300):
        fragments.get(number, lambda: b"x")
    assert fragments.get(0, lambda: b"again") == b"again"
    assert fragments.get(299, lambda: b"again") == b"x"

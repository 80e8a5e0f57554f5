"""Due times and options of a write, without Spark: how due times are spread, and what is refused."""

from __future__ import annotations

from statistics import mean

import pytest

from retry_topic.spark.source.options import read_scope, read_writing
from retry_topic.spark.source.pacing import DueSpread, check_room, rate_problem
from wheel_sched.errors import ConfigError, Rejected

IDS = [f"m{n}" for n in range(2_000)]


def test_a_pace_moves_dues_later_and_evenly() -> None:
    """The extra delay comes from a hash of the id, so it is the same in every run. It is added to the row's due time,
    or to the present time if that is later."""
    spread = DueSpread(10_000)
    late = [spread.due_ms(name, 500) - 500 for name in IDS]
    assert all(0 <= one < 10_000 for one in late)
    assert 4_700 < mean(late) < 5_300
    assert late == [DueSpread(10_000).due_ms(name, 500) - 500 for name in IDS]
    assert DueSpread().due_ms("m", 7) == 7
    rate = DueSpread.of_rate(2_000, 100, 1_000_000)
    assert rate.spread_ms == 20_000
    assert all(1_000_000 <= rate.due_ms(name, 5) < 1_020_000 for name in IDS)
    assert rate.due_ms("m", 2_000_000) >= 2_000_000
    assert DueSpread.of_rate(0, 5, 9).due_ms("m", 0) == 9


@pytest.mark.parametrize("rate", [0.0, -1.0, 1e7, float("nan")])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    """Rates that are zero, negative, too high or NaN are refused. None means no rate."""
    assert "above 0" in (rate_problem(rate) or "")
    assert rate_problem(None) is None


def test_what_does_not_fit_is_refused() -> None:
    """A write that needs more memory than the server has left is refused. If the free memory is unknown, the write is
    accepted."""
    with pytest.raises(Rejected, match=r"30 rows need about 5\.0 MB and the server has 4\.0 MB left"):
        check_room(5_000_000, 4_000_000, "30 rows")
    check_room(5_000_000, 5_000_000, "30 rows")
    check_room(5_000_000, None, "30 rows")


def test_every_mistake_of_a_write_is_named() -> None:
    """One error lists all wrong options of a write. A read refuses the options of a write."""
    with pytest.raises(ConfigError) as caught:
        read_writing({"rate": "ten", "spread_ms": "5", "form": "items", "memory_limit": "much"}, streaming=False)
    assert len(caught.value.problems) == 6
    with pytest.raises(ConfigError, match="6 problems"):
        read_writing({"rate": "5", "rows": "5", "bytes": "5", "job_id": "j", "states": "due"}, streaming=True)
    with pytest.raises(ConfigError, match="expected no option rate for a read"):
        read_scope({"rate": "5"}, 3)
    found = read_writing({"rate": "5", "rows": "7", "job_id": "j", "bytes": "9", "memory_limit": "8"}, streaming=False)
    assert (found.rate, found.rows, found.job_id, found.bytes_needed, found.memory_limit) == (5.0, 7, "j", 9, 8)

"""The kinds of delay: their formulas, their caps, and the distribution of each jitter."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest

from retry_topic.policy import Decorrelated, Delay, Exponential, Fixed, Linear, Listed
from wheel_sched.errors import ConfigError

SAMPLES = 20_000
# Kolmogorov-Smirnov: a right distribution exceeds this once in a million seeds; the seed is fixed.
KS_BOUND = math.sqrt(-math.log(1e-6 / 2) / 2 / SAMPLES)


def drawn(delay: Delay, attempt: int, previous_ms: int | None = None) -> list[int]:
    rng = random.Random(20_260_101)
    return sorted(delay.draw(attempt, previous_ms, rng).delay_ms for _ in range(SAMPLES))


def ks_distance(ordered: Sequence[int], cdf: Callable[[float], float]) -> float:
    """The greatest distance between the empirical and the expected distribution (Kolmogorov-Smirnov).

    Values are whole milliseconds, so `cdf` is evaluated at +0.5.
    """
    worst = 0.0
    for index, value in enumerate(ordered):
        if index + 1 < len(ordered) and ordered[index + 1] == value:
            continue
        worst = max(worst, abs((index + 1) / len(ordered) - cdf(value + 0.5)))
    return worst


def uniform_cdf(low: float, high: float) -> Callable[[float], float]:
    return lambda x: min(1.0, max(0.0, (x - low) / (high - low)))


def curve(delay: Delay, attempts: Sequence[int]) -> list[int]:
    rng = random.Random(1)
    return [delay.draw(attempt, None, rng).curve_ms for attempt in attempts]


def test_fixed_is_always_the_same() -> None:
    """A fixed delay does not depend on the attempt."""
    assert curve(Fixed(5_000), [1, 2, 1_000]) == [5_000, 5_000, 5_000]


def test_linear_adds_a_step_each_time_up_to_its_cap() -> None:
    """The first retry waits `base`. Each further retry waits one step longer, but never longer than the cap."""
    assert curve(Linear(1_000, 500, 2_200), [1, 2, 3, 4]) == [1_000, 1_500, 2_000, 2_200]


def test_exponential_multiplies_each_time_up_to_its_cap() -> None:
    """The first retry waits `base`. Each further retry waits `factor` times as long, but never longer than the cap."""
    assert curve(Exponential(1_000, 2, 10_000), [1, 2, 3, 4, 5, 6]) == [1_000, 2_000, 4_000, 8_000, 10_000, 10_000]


def test_a_fractional_factor_has_no_float_dust() -> None:
    """1000 * 1.1**2 is 1210 ms, not 1211: rounding errors of floats do not matter."""
    assert curve(Exponential(1_000, 1.1), [3]) == [1_210]


@pytest.mark.parametrize("factor", [1, 1.0000001, 1.5, 2, 2.5, 10, 100])
@pytest.mark.parametrize("base_ms", [0, 1, 999, 3_600_000])
def test_capping_the_exponent_changes_no_value(factor: float, base_ms: int) -> None:
    """Delays equal the plain formula wherever that formula can be computed."""
    delay = Exponential(base_ms, factor, 3_600_000)
    for attempt in range(1, 100):
        plain = min(3_600_000, math.ceil(round(base_ms * factor ** (attempt - 1), 3)))
        assert delay.draw(attempt, None, random.Random(1)).curve_ms == plain


@pytest.mark.parametrize(
    "delay",
    [
        Fixed(7),
        Linear(1, 10**9),
        Exponential(1, 100),
        Exponential(1, 1.0000001),
        Exponential(0, 2),
        Decorrelated(),
        Listed((1, 2)),
    ],
    ids=repr,
)
def test_the_thousand_millionth_attempt_neither_overflows_nor_leaves_the_cap(delay: Delay) -> None:
    """The exponent is limited before the power is computed: 2.0**1024 would raise, and an exact 2**10**9 would never
    end."""
    draw = delay.draw(10**9, 10**18, random.Random(1))
    assert 0 <= draw.low_ms <= draw.delay_ms <= draw.high_ms <= 3_600_000


@pytest.mark.parametrize("delay", [Exponential(), Linear(), Listed(), Fixed(), Decorrelated()], ids=repr)
def test_an_attempt_below_one_counts_as_the_first(delay: Delay) -> None:
    """An attempt number below one gives the first delay."""
    assert delay.draw(-5, -5, random.Random(3)) == delay.draw(1, None, random.Random(3))


def test_full_jitter_is_uniform_from_zero_to_the_curve() -> None:
    """Values are uniform between zero and the delay without jitter."""
    values = drawn(Exponential(1_000, 2, jitter="full"), 3)
    assert sum(values) / SAMPLES == pytest.approx(2_000, rel=0.02)
    assert sum(value < 200 for value in values) / SAMPLES == pytest.approx(0.05, abs=0.01)
    assert sum(value > 3_800 for value in values) / SAMPLES == pytest.approx(0.05, abs=0.01)
    assert values[0] <= 2
    assert values[-1] >= 3_998
    assert ks_distance(values, uniform_cdf(0, 4_001)) < KS_BOUND


def test_equal_jitter_is_uniform_over_the_upper_half() -> None:
    """Values are uniform between half and all of the delay without jitter."""
    values = drawn(Exponential(1_000, 2, jitter="equal"), 3)
    assert sum(values) / SAMPLES == pytest.approx(3_000, rel=0.01)
    assert 2_000 <= values[0] <= 2_002
    assert 3_998 <= values[-1] <= 4_000
    assert ks_distance(values, uniform_cdf(2_000, 4_001)) < KS_BOUND


def test_decorrelated_jitter_is_uniform_from_base_to_three_times_the_previous_delay() -> None:
    """Values are uniform between base and three times the previous delay."""
    values = drawn(Decorrelated(1_000, 3_600_000), 5, previous_ms=4_000)
    assert sum(values) / SAMPLES == pytest.approx(6_500, rel=0.02)
    assert 1_000 <= values[0] <= 1_005
    assert 11_995 <= values[-1] <= 12_000
    assert ks_distance(values, uniform_cdf(1_000, 12_001)) < KS_BOUND


def test_decorrelated_jitter_puts_what_is_over_the_cap_at_the_cap() -> None:
    """Drawn values above the cap become exactly the cap. Below the cap, values are uniform."""
    values = drawn(Decorrelated(1_000, 6_500), 5, previous_ms=4_000)
    assert values.count(6_500) / SAMPLES == pytest.approx(0.5, abs=0.02)
    below = [value for value in values if value < 6_500]
    assert ks_distance(below, uniform_cdf(1_000, 6_500)) < KS_BOUND * math.sqrt(2)


def test_the_bounds_test_would_notice_a_wrong_distribution() -> None:
    """A triangular distribution exceeds the limit of the distribution tests by far. So these tests notice a wrong
    distribution."""
    rng = random.Random(1)
    triangular = sorted(int(rng.triangular(0, 4_000)) for _ in range(SAMPLES))
    assert ks_distance(triangular, uniform_cdf(0, 4_001)) > 3 * KS_BOUND


def test_a_forged_previous_delay_is_clamped() -> None:
    """However large or negative the previous delay is, the drawn delay is between base and cap."""
    for previous_ms in (-(10**30), 0, 10**30):
        draw = Decorrelated(1_000, 60_000).draw(2, previous_ms, random.Random(2))
        assert 1_000 <= draw.delay_ms <= 60_000
        assert draw.formula in ("uniform(1s, 3*1s)", "uniform(1s, 3*1m)")


def test_a_list_ends_with_its_last_entry() -> None:
    """After the end of the list, its last delay is repeated."""
    assert curve(Listed((10, 20, 30)), [1, 2, 3, 4, 99]) == [10, 20, 30, 30, 30]


def test_all_mistakes_of_a_delay_are_named() -> None:
    """One error lists every wrong field of a delay."""
    with pytest.raises(ConfigError) as caught:
        Exponential(-1, float("nan"), True, "half")  # type: ignore[arg-type]
    assert [problem.split()[1] for problem in caught.value.problems] == ["base", "cap", "factor", "jitter"]


def test_a_list_is_not_taken_for_a_tuple() -> None:
    """The delays must be a tuple. A list is refused, because it could change after it was checked."""
    with pytest.raises(ConfigError, match="expected delays to be a tuple"):
        Listed([1, 2])  # type: ignore[arg-type]


def test_a_cap_below_its_base_is_refused() -> None:
    """A cap below the base is an error. It does not shorten the delay."""
    with pytest.raises(ConfigError, match=r"expected cap to be at least base \(10s\), got: 5s"):
        Decorrelated(10_000, 5_000)

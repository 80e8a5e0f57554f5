"""The charts of policies: delays by attempt, and attempts over time."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from retry_topic.management.policy_trials import PolicyPicture
from retry_topic.policy.load_simulation import LoadSimulation
from wheel_sched.dashboard.charts import curve
from wheel_sched.duration import UNITS_MS

_NAMES = (("h", "hours"), ("m", "minutes"), ("s", "seconds"))


def delay_chart(picture: PolicyPicture) -> Markup | None:
    """The chart of the delay after each attempt. A line shows the median, a band shows the spread of the jitter.

    None for a policy with fewer than two delays.
    """
    delays = [(step.attempt, step.delay) for step in picture.steps.steps if step.delay is not None]
    if len(delays) < 2:
        return None
    unit_ms, name = _unit(max(delay.max_ms for _, delay in delays))
    return curve(
        [(attempt, delay.p50_ms / unit_ms) for attempt, delay in delays],
        f"delays of {picture.policy.ident} by attempt, from {delays[0][0]} to {delays[-1][0]}",
        x_label="after attempt",
        y_label=f"delay in {name}: median, and the spread",
        band=[(delay.min_ms / unit_ms, delay.max_ms / unit_ms) for _, delay in delays],
    )


def load_chart(found: LoadSimulation) -> Markup:
    """The chart of attempts a second over time. A line shows all attempts, an area shows the first attempts."""
    per_bucket = 1_000 / found.bucket_ms
    unit_ms, name = _unit(len(found.attempts_in) * found.bucket_ms)
    peak = f"at most {found.peak_per_second:.3g} attempts a second, {found.load_factor:.3g} for each message"
    return curve(
        _points(found.attempts_in, found.bucket_ms / unit_ms, per_bucket),
        f"simulated attempts over time: {peak}",
        x_label=f"{name} after the first message",
        y_label="attempts a second (line), first attempts (area)",
        band=[(0, count * per_bucket) for count in found.first_attempts_in],
    )


def _points(counts: Sequence[int], width: float, scale: float) -> list[tuple[float, float]]:
    return [(round(number * width, 3), count * scale) for number, count in enumerate(counts)]


def _unit(most_ms: int) -> tuple[int, str]:
    """The unit of time for a scale up to `most_ms`: how many milliseconds it has, and its name."""
    return next(((UNITS_MS[unit], name) for unit, name in _NAMES if most_ms >= 5 * UNITS_MS[unit]), (1_000, "seconds"))

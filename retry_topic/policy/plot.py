"""Plots a simulation as text: one line per attempt, with a bar for the delay and the dead messages at the right.

    orders@3, 1000 messages; bar: min, p50, p90, max of the delay
       1  ░░▒▒▓             1.97s  (2ms to 4s)  after 1.97s
       2  ░░░░░▒▒▒▒▓        4.06s  (3ms to 7.99s)  after 6.04s  dead: 12.1% max-age

The bar shows the least delay, the median, the 90th percentile and the greatest delay. Its scale is linear.
"""

from __future__ import annotations

from retry_topic.policy.simulation import Simulation, Spread, Step
from wheel_sched.duration import UNITS_MS, format_duration

DEFAULT_WIDTH = 40
_MIN_WIDTH = 10


def plot(simulation: Simulation, width: int = DEFAULT_WIDTH) -> str:
    """Plot the bars; `width` is the width of the longest bar, at least 10."""
    width = max(_MIN_WIDTH, width)
    scale_ms = max((step.delay.max_ms for step in simulation.steps if step.delay), default=0)
    lines = [f"{simulation.policy}, {simulation.samples} messages; bar: min, p50, p90, max of the delay"]
    lines += [_line(step, simulation.samples, scale_ms, width) for step in simulation.steps]
    return "\n".join(lines) + "\n"


def _line(step: Step, samples: int, scale_ms: int, width: int) -> str:
    text = f"{step.attempt:>4}"
    if step.delay and step.elapsed:
        range_text = f"{_short(step.delay.min_ms)} to {_short(step.delay.max_ms)}"
        text += f"  {_bar(step.delay, scale_ms, width)}  {_short(step.delay.p50_ms):>8}  ({range_text})"
        text += f"  after {_short(step.elapsed.p50_ms)}"
    if step.died:
        text += "  dead: " + ", ".join(f"{100 * count / samples:.3g}% {why}" for why, count in step.died.items())
    return text.rstrip()


def _bar(delay: Spread, scale_ms: int, width: int) -> str:
    """A bar: blank up to the minimum, then one shade each up to p50, p90 and max. It has at least one mark."""
    ends = [point_ms * width // max(1, scale_ms) for point_ms in (delay.min_ms, delay.p50_ms, delay.p90_ms)]
    last = max(1, delay.max_ms * width // max(1, scale_ms))
    start, middle, high = (min(end, last - 1) for end in ends)
    return (" " * start + "░" * (middle - start) + "▒" * (high - middle) + "▓" * (last - high)).ljust(width)


def _short(delay_ms: int) -> str:
    """Round for the plot: 4m37.213s becomes 4m37s, 2.713s becomes 2.71s."""
    if delay_ms >= UNITS_MS["m"]:
        return format_duration(delay_ms // UNITS_MS["s"] * UNITS_MS["s"])
    return format_duration(delay_ms // 10 * 10) if delay_ms >= UNITS_MS["s"] else format_duration(delay_ms)

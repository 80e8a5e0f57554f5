"""A simulation as text for a terminal: one line per attempt, a bar for the delay, what dies at the right.

    orders@3, 1000 messages; bar: min, p50, p90, max of the delay
       1  ░░▒▒▓             1.97s  (2ms to 4s)  after 1.97s
       2  ░░░░░▒▒▒▒▓        4.06s  (3ms to 7.99s)  after 6.04s  dead: 12.1% max-age

The bar runs from the least delay over the median and the 90th percentile to the greatest. Its scale is linear; pure.
"""

from __future__ import annotations

from retry_topic.policy.simulation import Simulation, Spread, Step
from wheel_sched.duration import UNITS_MS, format_duration

DEFAULT_WIDTH = 40
_MIN_WIDTH = 10


def plot(simulation: Simulation, width: int = DEFAULT_WIDTH) -> str:
    """Text bars; `width` is that of the longest bar (at least 10)."""
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
    """Blank up to the minimum, then a shade each up to p50, p90 and max; never shorter than one mark."""
    ends = [point_ms * width // max(1, scale_ms) for point_ms in (delay.min_ms, delay.p50_ms, delay.p90_ms)]
    last = max(1, delay.max_ms * width // max(1, scale_ms))
    start, middle, high = (min(end, last - 1) for end in ends)
    return (" " * start + "░" * (middle - start) + "▒" * (high - middle) + "▓" * (last - high)).ljust(width)


def _short(delay_ms: int) -> str:
    """Three figures are enough for a plot: 4m37.213s reads as 4m37s, 2.713s as 2.71s."""
    if delay_ms >= UNITS_MS["m"]:
        return format_duration(delay_ms // UNITS_MS["s"] * UNITS_MS["s"])
    return format_duration(delay_ms // 10 * 10) if delay_ms >= UNITS_MS["s"] else format_duration(delay_ms)

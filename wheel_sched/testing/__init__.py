"""Tools for tests of schedules: virtual clocks and event loops, pytest fixtures, conformance suites."""

from __future__ import annotations

from wheel_sched.testing.virtual_clock import VirtualClock

__all__ = ["VirtualClock"]

"""What tests of schedules need: time that moves when the test says so."""

from __future__ import annotations

from wheel_sched.testing.virtual_clock import VirtualClock

__all__ = ["VirtualClock"]

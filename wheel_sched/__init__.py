"""wheel-sched: one scheduling core for Python task frameworks."""

"""`python -m wheel_sched.cli` does the same as `wheel-sched`. It works even if `wheel-sched` is not on PATH."""

from __future__ import annotations

from wheel_sched.cli import main

main()

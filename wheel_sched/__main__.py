"""`python -m wheel_sched`: the same as `wheel-sched`, where scripts are not on PATH."""

from __future__ import annotations

from wheel_sched.cli import main

main()

"""`python -m wheel_sched.cli` does the same as `wheel-sched`, also where scripts are not on PATH."""

from __future__ import annotations

from wheel_sched.cli import main

main()

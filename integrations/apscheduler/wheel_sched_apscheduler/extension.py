"""What the APScheduler integration adds to the command line `wheel-sched` and to the dashboard."""

from __future__ import annotations

from wheel_sched.extensions import Extension, Lazy, OwnTopic, Stack

EXTENSION = Extension(
    title="APScheduler",
    commands={
        "aps": Lazy("wheel_sched_apscheduler.cli:aps", "Manage APScheduler jobs in a shared store.", "apscheduler")
    },
    variables=("APS_SECRET",),
    dispatchers=("an APScheduler scheduler",),
    dashboard="wheel_sched_apscheduler.dashboard.part:PART",
    topics={"job": OwnTopic("jobs", "/jobs")},
    stacks={
        "apscheduler": Stack(
            "wheel_sched_apscheduler:cli/stack",
            "jobs that many processes share",
            "pip install -e '.[test]' && pytest",
        )
    },
    packages={"apscheduler": "apscheduler"},
)

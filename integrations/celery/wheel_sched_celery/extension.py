"""What the Celery integration adds to the command `wheel-sched` and to the dashboard. See `cli` for `celery wheel`."""

from __future__ import annotations

from wheel_sched.extensions import Extension, Stack

EXTENSION = Extension(
    title="Celery",
    dispatchers=("a Celery worker",),
    metrics={"wheel-sched-beat": "wheel_sched_celery.beat.metrics:of_schedule"},
    dashboard="wheel_sched_celery.dashboard.part:PART",
    stacks={
        "celery": Stack(
            "wheel_sched_celery:cli/stack", "Celery tasks that wait in a store", "pip install -e '.[test]' && pytest"
        )
    },
    packages={"celery": "celery", "kombu": "celery"},
)

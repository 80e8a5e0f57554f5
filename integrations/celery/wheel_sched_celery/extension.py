"""What the Celery integration adds to `wheel-sched` and to the dashboard; its commands are those of `celery wheel`."""

from __future__ import annotations

from wheel_sched.extensions import Extension

EXTENSION = Extension(
    title="Celery",
    dispatchers=("a Celery worker",),
    metrics={"wheel-sched-beat": "wheel_sched_celery.beat.metrics:of_schedule"},
    dashboard="wheel_sched_celery.dashboard.part:PART",
    packages={"celery": "celery", "kombu": "celery"},
)

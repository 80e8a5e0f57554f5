"""What the Celery integration adds to the command line `wheel-sched`; its commands are those of `celery wheel`."""

from __future__ import annotations

from wheel_sched.extensions import Extension

EXTENSION = Extension(
    title="Celery",
    dispatchers=("a Celery worker",),
    packages={"celery": "celery", "kombu": "celery"},
)

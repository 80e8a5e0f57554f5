"""Looking into an app's store and changing what waits there, from Python; `celery wheel` is the command line of it."""

from wheel_sched_celery.management.doctor import examine
from wheel_sched_celery.management.held_tasks import Changed, HeldTasks
from wheel_sched_celery.management.waiting_task import TaskFilter, WaitingTask

__all__ = ["Changed", "HeldTasks", "TaskFilter", "WaitingTask", "examine"]

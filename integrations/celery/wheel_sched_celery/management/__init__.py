"""Lists and changes the tasks in an app's store, from Python. `celery wheel` is its command line."""

from wheel_sched_celery.management.doctor import examine
from wheel_sched_celery.management.held_tasks import Changed, HeldTasks
from wheel_sched_celery.management.waiting_task import TaskFilter, WaitingTask

__all__ = ["Changed", "HeldTasks", "TaskFilter", "WaitingTask", "examine"]

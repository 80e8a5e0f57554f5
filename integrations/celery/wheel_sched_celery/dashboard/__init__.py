"""What the Celery integration adds to the dashboard: tasks that wait for their ETA, one task, and changes of tasks."""

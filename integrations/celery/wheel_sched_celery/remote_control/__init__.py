"""Remote control: what workers answer to `celery inspect` and `celery control` about held tasks."""

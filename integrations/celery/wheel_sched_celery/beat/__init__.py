"""Celery Beat on the wheel: each entry of the schedule is an item of the app's delay store, and any worker ticks it."""

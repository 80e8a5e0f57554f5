"""A simulated world of Celery workers, a producer, a broker and the delay store. Needs `wheel-sched[simulation]`."""

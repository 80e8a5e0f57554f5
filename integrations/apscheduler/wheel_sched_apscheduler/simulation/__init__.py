"""A simulated world of APScheduler jobs: several schedulers share one store, and a producer adds and changes jobs."""

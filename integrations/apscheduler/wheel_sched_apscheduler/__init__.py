"""The APScheduler jobstores and schedulers; in progress, see CHANGELOG.md."""

"""The Celery worker plugin; in progress, see CHANGELOG.md."""

"""What the APScheduler integration adds to the dashboard: jobs, one job, the last runs, and changes of jobs."""

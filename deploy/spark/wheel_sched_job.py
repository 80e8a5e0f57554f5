"""Runs `wheel-sched` under spark-submit.

deploy/spark/submit.sh deploy/spark/wheel_sched_job.py --store URL spark JOB ...
"""

from wheel_sched.cli import main

main()

"""A producer that knows nothing of wheel-sched. The workers move its ETA tasks into the delay store.

python stock_producer.py 20
"""

from __future__ import annotations

import os
import sys

from celery import Celery

app = Celery("elsewhere", broker=os.environ["BROKER"], backend=os.environ["BROKER"])

for number in range(int(sys.argv[1])):
    print(app.send_task("reports.send", (f"stock {number}",), countdown=3600).id)  # noqa: T201

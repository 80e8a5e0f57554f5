"""The Celery app of workers and producers. wheel-sched needs one line more than a stock app."""

from __future__ import annotations

import os
import time
from datetime import datetime

from celery import Celery
from wheel_sched_celery import install

app = Celery("reports", broker=os.environ["BROKER"], backend=os.environ["BROKER"])
install(app)


@app.task(bind=True, name="reports.send")
def send(self, who: str) -> dict[str, object]:  # type: ignore[no-untyped-def]  # noqa: ANN001
    """Return who got a report, from which worker, and how many ms late."""
    due = datetime.fromisoformat(self.request.eta).timestamp()
    return {"who": who, "worker": self.request.hostname, "late_ms": (time.time() - due) * 1000}

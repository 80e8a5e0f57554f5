"""Jobs of APScheduler and tasks of Celery for the demonstration, in the namespaces that the integrations choose."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from celery import Celery
from wheel_sched_apscheduler import Producer, RedisWheelJobStore
from wheel_sched_celery import install
from wheel_sched_celery.beat.entries import BeatEntries

from tests.browser.seeding import HOSTILE, MARKUP


def run_report(*_: object, **__: object) -> None:
    """The function of the jobs. Nobody calls it here."""


def send_mail(address: str, note: str = "") -> None:
    """A task. No worker runs it."""


def write_invoice(number: int, lines: object = ()) -> None:
    """A task. No worker runs it."""


def seed_jobs(url: str, *, hostile: bool) -> None:
    """Store jobs with every kind of trigger: scheduled, paused, tagged."""
    store = RedisWheelJobStore(url)
    with Producer(store, timezone="UTC") as producer:
        now = datetime.now(UTC)
        producer.add_job(run_report, "cron", id="nightly-report", hour=2, minute=30, day_of_week="mon-fri")
        producer.add_job(run_report, "cron", id="month-end", day="last", hour=23, tags=("billing",))
        producer.add_job(run_report, "interval", id="poll-bank", minutes=30, args=["bank"], tags=("billing", "io"))
        producer.add_job(run_report, "date", id="birthday", run_date=now + timedelta(days=3))
        producer.add_job(run_report, "interval", id="paused-job", hours=1, next_run_time=None)
        for n in range(12):
            producer.add_job(run_report, "interval", id=f"sync-{n:02d}", hours=1 + n, name=f"Sync of shop {n}")
        producer.add_job(run_report, "interval", id="lost-function", minutes=1, next_run_time=now)
        for n, text in enumerate(HOSTILE if hostile else ()):
            job_id = f"job {n} " + "".join(one for one in text if one.isprintable())  # the job store accepts no others
            producer.add_job(run_report, "interval", id=job_id, hours=2, name=job_id, args=[text])

    _quarantine(url, "lost-function")


def _quarantine(url: str, job_id: str) -> None:
    """Let a process refuse a due job whose function it does not have."""
    store = RedisWheelJobStore(url, quarantine_refusals=1, quarantine_after_s=0)
    store.start(None, "default")
    found = store.store.get([job_id])[0]
    assert found is not None
    body = found.body.replace(b"run_report", b"run_repor_")
    store.store.replace(replace(found.item(), body=body), keep_due=True)
    store.claim_batch(datetime.now(UTC))
    store.tracker.flush()
    store.shutdown()


def _seed_schedule(app: Celery, *, hostile: bool) -> None:
    """Store entries of the schedule: waiting ones with each kind of schedule, and one that is paused."""
    entries = BeatEntries(app)
    entries.add(entries.make("nightly-invoices", "shop.billing.write_invoice", "0 2 * * mon-fri", (1,)))
    entries.add(entries.make("old-cleanup", "shop.mail.send", "30 4 * * *", ("cleanup@example.org",)))
    entries.pause("old-cleanup")
    for n in range(6):
        entries.add(entries.make(f"digest-{n}", "shop.mail.send", 3600.0 + n, (f"team-{n}@example.org",)))
    for n, text in enumerate(HOSTILE if hostile else ()):
        name = f"entry {n} " + "".join(one for one in text if one.isprintable())[:150]  # the schedule accepts no others
        entries.add(entries.make(name, "shop.mail.send", 7200.0, (text,)))


@contextmanager
def celery_with_tasks(url: str, *, hostile: bool) -> Iterator[Celery]:
    """An application with tasks that wait, until the end of the block.

    Args:
        url: the address of the server, with a Unix socket.
        hostile: whether hostile texts are among the data.
    """
    broker = url.replace("unix://", "redis+socket://").replace("?db=", "?virtual_host=")
    app = Celery("shop", broker=broker, backend=broker, set_as_current=False)
    install(app, url)
    app.conf.result_backend_thread_safe = True
    mail = app.task(send_mail, name="shop.mail.send", shared=False)
    bill = app.task(write_invoice, name="shop.billing.write_invoice", shared=False)
    for n in range(20):
        mail.apply_async((f"customer-{n}@example.org",), countdown=3600 + 90 * n, task_id=f"mail-{n:02d}")
    for n in range(6):
        bill.apply_async((n,), {"lines": [1, 2]}, countdown=7200 + n, queue="billing", priority=5, task_id=f"bill-{n}")
    for n, text in enumerate(HOSTILE if hostile else ()):
        mail.apply_async(
            (text,), {"note": json.dumps(text)}, countdown=9000, task_id=f"evil-{n}", headers={"x": MARKUP}
        )
    _seed_schedule(app, hostile=hostile)
    try:
        yield app
    finally:
        app.wheel.close()
        app.close()  # does not close the connections of the result backend
        app.backend.result_consumer.stop()
        app.backend.client.connection_pool.disconnect()

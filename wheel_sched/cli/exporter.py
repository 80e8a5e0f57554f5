"""`wheel-sched exporter` serves the metrics of a namespace whose own processes serve none, such as Celery's workers.

`wheel-sched serve --http` serves the same metrics of the store, and those of its dispatchers. The exporter also
answers when no service runs. Then its metrics show that none runs.
"""

from __future__ import annotations

import signal
import threading

import click

from wheel_sched.cli.logs import set_up_logs
from wheel_sched.cli.options import Session, pass_session
from wheel_sched.cli.output import note
from wheel_sched.management.opening import opened
from wheel_sched.observability import Endpoint, parse_address, verdict
from wheel_sched.observability.prometheus import MetricsCollector, metrics_page
from wheel_sched.redacting import redacted


@click.command()
@click.option(
    "--http",
    default="9464",
    metavar="[HOST:]PORT",
    show_default=True,
    help="Address to listen on (default host: loopback).",
)
@pass_session
def exporter(session: Session, http: str) -> None:
    """Serve the metrics of a namespace for Prometheus, until a signal.

    It changes nothing. Use it for namespaces of Celery and APScheduler, and to see when no retry service runs.

    \b
    Examples:
      wheel-sched --namespace celery exporter
      wheel-sched --store redis://prod:6379 exporter --http 0.0.0.0:9464
    """
    settings = session.settings
    set_up_logs(settings.log_format, "info")
    address = parse_address(http)
    asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    with opened(settings) as store:
        alive = verdict(list)
        pages = {"/livez": alive, "/readyz": alive, "/metrics": metrics_page(MetricsCollector({}, store))}
        with Endpoint(*address, pages) as endpoint:
            note(f"metrics of {settings.namespace} in {redacted(settings.store)} at {endpoint.url}/metrics")
            asked.wait()

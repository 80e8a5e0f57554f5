"""`wheel-sched serve`: runs the retry service of consumer groups until a signal.

On SIGTERM the service settles the messages that it is publishing, and ends with exit code 0. On Ctrl-C it does the
same, but ends with exit code 130. A second signal ends the service at once. That loses no message: after the leases
end, the messages in flight are delivered again. When the embedded server ends and cannot be started again, the service
ends with exit code 69, so that a supervisor can restart it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType

import click

from retry_topic.cli.group_topics import topics_options
from retry_topic.cli.settings import settings_of
from retry_topic.connection import Connection
from retry_topic.management.opening import kafka_broker, opened_connection, policies_of, secrets_of
from retry_topic.message.topic_names import GroupTopics
from retry_topic.service import RetryService, ServiceConfig
from wheel_sched.cli.failing import INTERRUPTED, OK
from wheel_sched.cli.logs import set_up_logs
from wheel_sched.cli.options import Session, json_option, pass_session
from wheel_sched.cli.output import emit, note
from wheel_sched.config import Settings
from wheel_sched.errors import EmbeddedServerError
from wheel_sched.management.opening import embedded_folder
from wheel_sched.observability import Endpoint, dead_parts, parse_address, unready_parts, verdict
from wheel_sched.redacting import redacted
from wheel_sched.store.embedded import EmbeddedServer
from wheel_sched.store.embedded.settings import fsync_for
from wheel_sched.store.members.announcer import DISPATCHER_EVERY_MS

_LOOK_S = 1.0  # how soon the end of an embedded server is noticed; looking sends no command


@click.command()
@click.argument("groups", nargs=-1, metavar="GROUP...", required=True)
@click.option("--policies", type=click.Path(exists=True, dir_okay=False), metavar="FILE", help="Retry policies (TOML).")
@click.option(
    "--redelivery",
    type=click.Choice(["group", "origin"]),
    default="group",
    show_default=True,
    help="Send due messages to the group's redelivery topic, or to the topic where they first failed.",
)
@click.option(
    "--origin",
    "origins",
    multiple=True,
    metavar="TOPIC",
    help="With --redelivery origin: the only topics for due messages (default: those the group reads).",
)
@click.option(
    "--headers",
    type=click.Choice(["own", "spring"]),
    default="own",
    show_default=True,
    help="own: only our retry headers; spring: also those of Spring Kafka.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Least level of log lines.",
)
@click.option(
    "--http",
    metavar="[HOST:]PORT",
    help="Serve /metrics, /livez and /readyz at this address (default host: loopback).",
)
@click.option(
    "--history",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Keep the history of about N attempts in the store.",
)
@click.option(
    "--reference-above",
    type=click.IntRange(min=0),
    default=0,
    metavar="BYTES",
    help="Leave larger payloads in the Kafka retry topic; the store refers to them (default 0: store all).",
)
@click.option(
    "--announce",
    type=click.IntRange(0, 3600),
    default=DISPATCHER_EVERY_MS // 1000,
    show_default=True,
    metavar="SECONDS",
    help="How often the service announces itself for `wheel-sched ps`; 0: never.",
)
@topics_options
@json_option
@pass_session
def serve(
    session: Session,
    groups: tuple[str, ...],
    policies: str | None,
    redelivery: str,
    origins: tuple[str, ...],
    headers: str,
    log_level: str,
    http: str | None,
    history: int,
    reference_above: int,
    announce: int,
    topics: GroupTopics,
    as_json: bool,
) -> int:
    """Run the retry service of GROUPs: read failed messages, store them, deliver them again on time.

    Any number of services may run for one group. A service creates the namespace and the groups' topics when they are
    absent.

    \b
    Examples:
      wheel-sched serve webhooks
      wheel-sched --store redis://prod:6379 serve orders billing --policies retry.toml
      wheel-sched serve webhooks --http 9464
      wheel-sched --kafka broker:9092 --store redis://prod:6379 serve orders
    """
    settings = settings_of(session)
    set_up_logs(settings.log_format, log_level)
    policy_set = policies_of(settings, policies)
    address = None if http is None else parse_address(http)
    config = ServiceConfig(
        redelivery="origin" if redelivery == "origin" else "group",
        origins=origins,
        headers="spring" if headers == "spring" else "own",
        history=history,
        reference_above=reference_above,
        secrets=secrets_of(settings),
        group_topics=topics,
        announce_ms=announce * 1000,
    )
    if settings.kafka is not None:
        kafka_broker(settings).close()  # before a server is started: Kafka's settings can be wrong
    with contextlib.ExitStack() as running:
        server = _embedded(settings)
        if server is not None:
            running.callback(server.close)
        connection = running.enter_context(opened_connection(settings, create=True))
        stop = running.enter_context(_stop_signals())
        services = [RetryService(connection, group, policy_set, config=config) for group in dict.fromkeys(groups)]
        if address is not None:
            by_group = {service.group: service for service in services}
            endpoint = running.enter_context(_endpoint(address, by_group, connection))
            note(f"metrics and probes at {endpoint.url}")
        for service in services:
            running.enter_context(service)
        running.enter_context(_frozen_heap())
        note(f"serving {', '.join(groups)} from {redacted(settings.store)}; hand-over: {services[0].hand_over}")
        while not stop.asked.wait(_LOOK_S):
            if server is not None and not _runs(server.pid):
                _take_over(server)
        note("stopping: settling the messages that are being published")
    _show(services, as_json)
    return INTERRUPTED if stop.signals[0] == signal.SIGINT else OK


class _Stop:
    """Handles signals to stop. The first one sets `asked`; the second one ends the process at once."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.signals: list[int] = []

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.signals:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.signals.append(number)
        self.asked.set()


@contextlib.contextmanager
def _stop_signals() -> Iterator[_Stop]:
    """Handle SIGINT and SIGTERM during a `with` block."""
    stop = _Stop()
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _frozen_heap() -> Iterator[None]:
    """A `with` block in which garbage collection skips the loaded modules.

    A collection that visits them too delays messages by tens of ms.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _show(services: Sequence[RetryService], as_json: bool) -> None:
    """Show how many messages each service published, how many publishes failed, and how many messages became dead."""
    for service in services:
        stats = service.stats
        if as_json:
            emit({"group": service.group, "published": stats.published, "failed": stats.failed, "dead": stats.dead})
        else:
            note(f"{service.group}: {stats.published:,} published, {stats.failed:,} failed, {stats.dead:,} dead")


def _embedded(settings: Settings) -> EmbeddedServer | None:
    """Open the embedded server of the settings, if there is one. When it ends, the service starts it again."""
    folder = embedded_folder(settings)
    if folder is None:
        return None
    server = EmbeddedServer.open(folder, fsync=fsync_for(settings.durability))
    if not server.started_here:
        note(f"the server in {folder} belongs to another process (it is pid {server.pid}) until that ends")
    return server


def _take_over(server: EmbeddedServer) -> None:
    """Start the server again after its end, unless another process was faster. The data is still in the folder.

    Raises:
        EmbeddedServerError: the server cannot be started, or has another address now.
    """
    pid, url = server.pid, server.url
    if server.take_over():
        if server.url != url:
            raise EmbeddedServerError(
                f"the embedded server (pid {pid}) has ended, and the new server has another socket, because the path "
                f"of {server.folder} is too long for one: start `wheel-sched serve` again"
            )
        note(f"the server in {server.folder} (pid {pid}) had ended; it runs again (pid {server.pid})")


def _endpoint(address: tuple[str, int], services: Mapping[str, RetryService], connection: Connection) -> Endpoint:
    """Serve metrics and health pages. Without the extra `metrics` the page /metrics says how to install it."""
    pages = {
        "/livez": verdict(lambda: dead_parts(services)),
        "/readyz": verdict(lambda: unready_parts(services)),
    }
    try:
        from wheel_sched.observability.prometheus import MetricsCollector, metrics_page
    except ImportError:
        missing = 'metrics need the extra: pip install "wheel-sched[metrics]"; /livez and /readyz work without it'
        pages["/metrics"] = verdict(lambda: [missing])
    else:
        purgatories = {name: service.dispatcher.purgatory for name, service in services.items()}
        pages["/metrics"] = metrics_page(MetricsCollector(services, connection.store, purgatories))
    return Endpoint(*address, pages)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

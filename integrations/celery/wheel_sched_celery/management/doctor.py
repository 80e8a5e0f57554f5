"""Findings about an app: who still sends ETA tasks the stock way, whether the visibility timeout fits, who dispatches.

Reads; changes nothing. Workers are asked over the broker's remote control and given `timeout_s` to answer; all else
comes from the store, so it works with no worker up and says what it could not see.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from typing import Any, Final

from kombu.exceptions import OperationalError

from wheel_sched.cli.doctor_finding import Finding, ok, problem, warn
from wheel_sched.cli.output import amount, span
from wheel_sched.store.items import MAX_BATCH, MAX_DUE_MS, Counts
from wheel_sched_celery.management.held_tasks import HeldTasks
from wheel_sched_celery.management.waiting_task import read
from wheel_sched_celery.message.due import instant_ms
from wheel_sched_celery.message.held_task import TAKEN_OVER, route_of
from wheel_sched_celery.release.broker_connection import short_connection
from wheel_sched_celery.remote_control.workers import differing, wheel_stats, why_idle

VISIBILITY_S: Final = 3600  # kombu's default for Redis
LATE_MS: Final = 5_000  # a due task that waits so long has nobody to send it
SQS_VISIBILITY_S: Final = 1800
LISTED: Final = 1_000  # held tasks at most that `inspect scheduled` shows
_SENDERS: Final = 5  # producers named in a line
_COLONS: Final = 3  # in the id of an item of ours
_SAMPLE: Final = 200  # taken-over tasks whose senders are looked at


@dataclass(slots=True)
class Patient:
    """What is examined.

    Args:
        tasks: the app's store.
        counts: of the store.
        stats: what workers with the integration said to `inspect wheel_stats`; None when the broker did not answer.
        pinged: names of the workers that are up.
        broker_away: why it cannot be reached, "" when it can.
        in_memory: rows of `inspect scheduled` that lie in workers, not in the store.
        senders: how many of the waiting tasks were taken over, by who sent them.
        longest_ms: the latest ETA that waits, None when nothing does.
    """

    tasks: HeldTasks
    counts: Counts
    now_ms: int
    stats: Mapping[str, Any] | None = None
    pinged: frozenset[str] = frozenset()
    broker_away: str = ""
    in_memory: Sequence[dict[str, Any]] = ()
    senders: Counter[str] = field(default_factory=Counter)
    longest_ms: int | None = None


def examine(app: Any, timeout_s: float = 1.0) -> Iterator[Finding]:
    """Findings, one after the other; "problem" breaks a promise now, "warn" may later.

    Args:
        app: with the integration installed.
        timeout_s: how long workers have to answer. Defaults to 1.

    Raises:
        ConfigError: it is not installed, or has no store.
        StoreError: the store cannot be reached.
    """
    tasks = HeldTasks(app)
    patient = Patient(tasks, tasks.counts(), tasks.now_ms())
    patient.longest_ms = _longest_ms(patient)
    patient.senders = _senders(tasks)
    _ask_workers(app, patient, timeout_s)
    for check in _CHECKS:
        yield check(patient)


def _longest_ms(patient: Patient) -> int | None:
    """The latest ETA that waits, to the second: found by halving, some forty short calls."""
    tasks, head_ms = patient.tasks, patient.counts.due_head_ms
    if head_ms is None:
        return None
    least_ms, greatest_ms = head_ms, MAX_DUE_MS
    while greatest_ms - least_ms > 1000:
        middle_ms = (least_ms + greatest_ms) // 2
        if tasks.store.list_items("due", least_ms=middle_ms, limit=1).found:
            least_ms = middle_ms
        else:
            greatest_ms = middle_ms
    return least_ms


def _senders(tasks: HeldTasks) -> Counter[str]:
    """Who sent what was taken over, of a sample: the `origin` header, else the task's name."""
    senders: Counter[str] = Counter()
    for item_id in tasks.store.find(TAKEN_OVER, limit=_SAMPLE):
        for waiting in tasks.get(item_id):
            senders[str(waiting.headers.get("origin") or f"unknown senders of {waiting.name}")] += 1
    return senders


def _ask_workers(app: Any, patient: Patient, timeout_s: float) -> None:
    inspect = app.control.inspect(timeout=timeout_s)
    try:
        with short_connection(app) as connection:  # Celery's own asks a broker that hangs for ever
            connection.connect()
        patient.pinged = frozenset(inspect.ping() or {})
        if patient.pinged:
            patient.stats = _answers(wheel_stats(inspect), dict)
            patient.in_memory = _in_memory(patient, _answers(inspect.scheduled(), list))
    except (OperationalError, *app.connection_for_write().recoverable_connection_errors) as error:
        patient.broker_away = str(error) or repr(error)


def _answers(replies: Mapping[str, Any] | None, kind: type) -> dict[str, Any]:
    """What workers answered; to what it does not know or cannot do, a worker answers with an error."""
    return {
        name: reply
        for name, reply in (replies or {}).items()
        if isinstance(reply, kind) and not (isinstance(reply, dict) and "installed" not in reply)
    }


def settings(patient: Patient) -> Finding:
    """What is held, and how it is handed over."""
    wheel = patient.tasks.wheel
    if wheel.settings.horizon is None:
        return warn("horizon", "None: nothing is put on hold", 'set wheel_horizon = "2s", unless you are uninstalling')
    how = "one script of the server: exactly once" if wheel.redis_queue else "publish, confirm, settle: at least once"
    held = f"tasks due in more than {span(wheel.settings.horizon)} are held"
    return ok("horizon", f"{held}; handed over by {how}")


def broker(patient: Patient) -> Finding:
    """Whether due tasks can go anywhere."""
    where = patient.tasks.wheel.app.connection_for_write().as_uri()
    if patient.broker_away:
        return problem(
            "broker", f"{where} is away: {patient.broker_away}", "start it, or correct broker_url; tasks stay held"
        )
    return ok("broker", where)


def workers(patient: Patient) -> Finding:
    """Who dispatches."""
    if patient.broker_away:
        return warn("workers", "they cannot be asked while the broker is away", "see broker")
    if not patient.pinged:
        return warn("workers", "no worker answered", "start one: held tasks are sent by workers that are up")
    stats, up = patient.stats or {}, len(patient.pinged)
    namespace = patient.tasks.wheel.settings.namespace
    idle = {name: why for name in sorted(patient.pinged) if (why := why_idle(namespace, stats.get(name)))}
    if len(idle) == up:
        said = "; ".join(f"{name}: {why}" for name, why in list(idle.items())[:_SENDERS])
        finding = problem if patient.counts.total("due") else warn
        return finding(
            "workers",
            f"none of {amount(up, 'worker')} sends what namespace {namespace} holds ({said})",
            "start one with install, this store and namespace, and dispatch=True",
        )
    stock = [name for name in idle if not stats.get(name, {}).get("installed") or stats[name].get("store", "") is None]
    if stock:
        return warn(
            "workers",
            f"{len(stock)} of {amount(up, 'worker')} without wheel_sched_celery or without a store: "
            f"{', '.join(stock[:_SENDERS])}",
            "install it there too: they keep ETA tasks in memory and send none of the held ones",
        )
    return ok("workers", f"{amount(up, 'worker')} up, all installed, {up - len(idle)} sending what is held")


def agreement(patient: Patient) -> Finding:
    """Whether all that share the store mean the same by "soon"."""
    lines = differing(patient.tasks.wheel.settings, patient.stats or {})
    if lines:
        return warn(
            "settings",
            f"they differ in namespace {patient.tasks.wheel.settings.namespace}: {'. '.join(lines)}",
            "set wheel_horizon and wheel_lead alike in producers and workers: nothing is lost, but a task sent long "
            "before a worker's own lead waits in that worker's memory",
        )
    return ok("settings", "horizon and lead are the same wherever somebody answered")


def late(patient: Patient) -> Finding:
    """Whether due tasks are sent."""
    head_ms = patient.counts.due_head_ms
    late_ms = 0 if head_ms is None else patient.now_ms - head_ms
    if late_ms > LATE_MS:
        return problem(
            "dispatch",
            f"the first task is {span(late_ms)} overdue",
            "start a worker, or look into its log for celery.*",
        )
    waiting = amount(patient.counts.total("due"), "task")
    return ok("dispatch", f"{waiting} held, none overdue")


def visibility(patient: Patient) -> Finding:
    """Whether the broker hands out again what a worker is still waiting with."""
    wheel = patient.tasks.wheel
    transport = wheel.app.connection_for_write().transport_cls
    default_s = {"redis": VISIBILITY_S, "rediss": VISIBILITY_S, "sqs": SQS_VISIBILITY_S}.get(str(transport))
    longest_ms = None if patient.longest_ms is None else max(0, patient.longest_ms - patient.now_ms)
    longest = "no task is held" if longest_ms is None else f"the longest ETA held is {span(longest_ms)} away"
    if default_s is None:
        return ok("visibility", f"{longest}; {transport} has no visibility timeout")
    options = wheel.app.conf.broker_transport_options or {}
    timeout_ms = int(float(options.get("visibility_timeout", default_s)) * 1000)
    said = f"the visibility timeout is {span(timeout_ms)}"
    in_memory_ms = max((_away_ms(row, patient.now_ms) for row in patient.in_memory), default=0)
    if in_memory_ms > timeout_ms:
        return problem(
            "visibility",
            f"{said}, and a worker's memory holds a task due in {span(in_memory_ms)}: it will run more than once",
            "install wheel_sched_celery in that worker, with takeover",
        )
    horizon_ms = wheel.settings.horizon
    if horizon_ms is None:
        if longest_ms is not None and longest_ms > timeout_ms:
            return problem(
                "visibility",
                f"{said}, {longest}, and nothing keeps it from workers once it is drained",
                "raise broker_transport_options['visibility_timeout'] above that, or set wheel_horizon again",
            )
        return ok("visibility", f"{said}; {longest}")
    if horizon_ms >= timeout_ms:
        return problem(
            "visibility",
            f"{said}, shorter than the horizon of {span(horizon_ms)}: tasks between the two run more than once",
            "set wheel_horizon well below the visibility timeout",
        )
    return ok("visibility", f"{said}; {longest}, and no worker holds it")


def producers(patient: Patient) -> Finding:
    """Who still sends ETA tasks the stock way."""
    senders = Counter(patient.senders)
    horizon_ms = patient.tasks.wheel.settings.horizon or 0
    for row in patient.in_memory:
        if _away_ms(row, patient.now_ms) > horizon_ms:
            senders[f"unknown senders of {row['request'].get('name')}"] += 1
    if not senders:
        return ok("producers", "no waiting ETA task came the stock way")
    named = ", ".join(f"{name} ({count:,})" for name, count in senders.most_common(_SENDERS))
    return warn(
        "producers",
        f"ETA tasks came the stock way from {named}",
        "install wheel_sched_celery there: tasks are then durable when apply_async returns, and cost no worker a thing",
    )


def task_ids(patient: Patient) -> Finding:
    """Whether task ids were chosen twice for one time: Celery knows no more of a result than its id."""
    page = patient.tasks.store.list_items("due", limit=MAX_BATCH)
    sent = Counter(found.id.rpartition(":")[0] for found in page.found if found.id.count(":") >= _COLONS)
    several = [key for key, count in sent.items() if count > 1]
    if several:
        named = ", ".join(route_of(f"{key}:") for key in several[:_SENDERS])
        return warn(
            "task ids",
            f"{amount(len(several), 'task id')} sent more than once for one ETA: {named}",
            "each runs, and they share one result: give tasks with other arguments or queues ids of their own",
        )
    return ok("task ids", "none was sent more than once for one ETA")


def revoked(patient: Patient) -> Finding:
    """Revoked tasks of which nobody was told: whoever did it died half-way, or the result backend was away."""
    page = patient.tasks.store.list_items("held", limit=MAX_BATCH)
    silent = [waiting.id for waiting in map(read, page.found) if waiting.revoked]
    if silent:
        return warn(
            "revoked",
            f"{amount(len(silent), 'revoked task')} will not run, and its result does not say so",
            f"celery wheel cancel {' '.join(silent[:_SENDERS])}",
        )
    return ok("revoked", "every revoked task was announced")


def given_up(patient: Patient) -> Finding:
    """Tasks that could not be published."""
    dead = patient.counts.total("dead")
    if dead:
        return warn(
            "given up",
            f"{amount(dead, 'task')} could not be published",
            "celery wheel list --state dead says why; celery wheel run-now --state dead --all tries again",
        )
    return ok("given up", "every task could be published")


def _in_memory(patient: Patient, scheduled: Mapping[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Rows of `inspect scheduled` that a worker holds in memory, unacknowledged: those that are not in the store."""
    rows = [row for answer in scheduled.values() for row in answer if row.get("eta") and row.get("request")]
    held = {read(found).id for found in patient.tasks.store.list_items("due", limit=LISTED).found} if rows else set()
    return [row for row in rows if row["request"]["id"] not in held and not patient.tasks.get(row["request"]["id"])]


def _away_ms(row: Mapping[str, Any], now_ms: int) -> int:
    eta_ms = instant_ms(row["eta"], UTC)
    return 0 if eta_ms is None else eta_ms - now_ms


_CHECKS: Final[tuple[Callable[[Patient], Finding], ...]] = (
    settings,
    broker,
    workers,
    agreement,
    late,
    visibility,
    producers,
    task_ids,
    revoked,
    given_up,
)

"""Checks of an app, such as which producers send ETA tasks without the store, and whether workers send held tasks.

The checks change nothing. They ask the workers over Celery's remote control, up to three times, and wait `timeout_s`
for the answers each time. They read everything else from the store, so they also work while no worker is up. A finding
then says that no worker answered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from typing import Any, Final

from kombu.exceptions import OperationalError

from wheel_sched.management.doctor.finding import Finding, ok, problem, warn
from wheel_sched.management.wording import amount, span
from wheel_sched.store.core.counts import Counts
from wheel_sched.store.core.items import MAX_BATCH, MAX_DUE_MS
from wheel_sched_celery.beat.apart import is_task
from wheel_sched_celery.beat.entries import BeatEntries
from wheel_sched_celery.management.beat_findings import beat_findings, beat_state
from wheel_sched_celery.management.held_tasks import HeldTasks
from wheel_sched_celery.management.waiting_task import read
from wheel_sched_celery.message.headers import instant_ms
from wheel_sched_celery.message.held_task import TAKEN_OVER, route_of
from wheel_sched_celery.release.broker_connection import short_connection
from wheel_sched_celery.remote_control.workers import differing, why_idle

VISIBILITY_S: Final = 3600  # kombu's default for Redis
LATE_MS: Final = 5_000  # a due task that waits longer than this is a sign that no worker sends any
SQS_VISIBILITY_S: Final = 1800
LISTED: Final = 1_000  # the most held tasks that `inspect scheduled` shows
_SENDERS: Final = 5  # the most producers named in a line
_COLONS: Final = 3  # in the id of a held task's item
_SAMPLE: Final = 200  # the most taken-over tasks whose senders are read


@dataclass(slots=True)
class Examined:
    """What the checks examine.

    Args:
        tasks: the app's store.
        counts: the counters of the store.
        now_ms: the store's time, in ms since 1970.
        stats: answers to `inspect wheel_stats` of the workers with the integration; None when no worker answered.
        pinged: names of the workers that are up.
        broker_away: why the broker cannot be reached; "" when it can.
        in_memory: rows of `inspect scheduled` about tasks that are in the memory of workers and not in the store.
        senders: by producer, the number of its tasks that workers moved from queues into the store, in a sample.
        longest_ms: the latest due time of a waiting task in the store, in ms, to the second; None when nothing waits.
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
    """Run all checks and give their findings. A "problem" breaks a guarantee now, a "warn" may break one later.

    Args:
        app: a Celery app with the integration installed.
        timeout_s: how long to wait for the answers of workers to each question, in seconds. Defaults to 1.

    Raises:
        ConfigError: the integration is not installed, or the app has no store.
        StoreError: the store cannot be reached.
    """
    tasks = HeldTasks(app)
    examined = Examined(tasks, tasks.counts(), tasks.now_ms())
    examined.longest_ms = _longest_ms(examined)
    examined.senders = _senders(tasks)
    _ask_workers(app, examined, timeout_s)
    for check in _CHECKS:
        yield check(examined)
    yield from beat_findings(beat_state(BeatEntries(tasks.wheel, tasks.store)))


def _longest_ms(examined: Examined) -> int | None:
    """The latest due time of a held task in the store, to the second. Searches by bisection, with some forty calls."""
    tasks, head_ms = examined.tasks, examined.counts.due_head_ms
    if head_ms is None:
        return None
    least_ms, greatest_ms = head_ms, MAX_DUE_MS
    while greatest_ms - least_ms > 1000:
        middle_ms = (least_ms + greatest_ms) // 2
        if _is_task_due_from(tasks, middle_ms):
            least_ms = middle_ms
        else:
            greatest_ms = middle_ms
    return least_ms


def _is_task_due_from(tasks: HeldTasks, least_ms: int) -> bool:
    cursor: str | None = None
    while True:
        page = tasks.store.list_items("due", least_ms=least_ms, limit=MAX_BATCH, cursor=cursor, matches=is_task)
        cursor = page.cursor
        if page.found or cursor is None:
            return bool(page.found)


def _senders(tasks: HeldTasks) -> Counter[str]:
    """By producer, the number of its tasks that workers moved into the store, in a sample.

    Names a producer by the header `origin`. Tasks without this header count under the text "unknown senders of <task
    name>".
    """
    senders: Counter[str] = Counter()
    for item_id in tasks.store.find(TAKEN_OVER, limit=_SAMPLE):
        for waiting in tasks.get(item_id):
            senders[str(waiting.headers.get("origin") or f"unknown senders of {waiting.name}")] += 1
    return senders


def _ask_workers(app: Any, examined: Examined, timeout_s: float) -> None:
    inspect = app.control.inspect(timeout=timeout_s)
    try:
        with short_connection(app) as connection:  # Celery's own connection would wait for ever for a broker that hangs
            connection.connect()
        examined.pinged = frozenset(inspect.ping() or {})
        if examined.pinged:
            examined.stats = _answers(inspect._request("wheel_stats"), dict)
            examined.in_memory = _in_memory(examined, _answers(inspect.scheduled(), list))
    except (OperationalError, *app.connection_for_write().recoverable_connection_errors) as error:
        examined.broker_away = str(error) or repr(error)


def _answers(replies: Mapping[str, Any] | None, kind: type) -> dict[str, Any]:
    """The answers of workers that know the command. Other workers answer with an error."""
    return {
        name: reply
        for name, reply in (replies or {}).items()
        if isinstance(reply, kind) and not (isinstance(reply, dict) and "installed" not in reply)
    }


def settings(examined: Examined) -> Finding:
    """Report which tasks are held, and how they get to their queues."""
    wheel = examined.tasks.wheel
    if wheel.settings.horizon is None:
        return warn("horizon", "None: no task is held", 'set wheel_horizon = "2s", unless you are uninstalling')
    how = (
        "one script of the server: exactly once"
        if wheel.shared_server.queue
        else "publish, confirm, settle: at least once"
    )
    held = f"tasks due in more than {span(wheel.settings.horizon)} are held"
    return ok("horizon", f"{held}; handed over by {how}")


def broker(examined: Examined) -> Finding:
    """Check whether the broker can be reached."""
    where = examined.tasks.wheel.app.connection_for_write().as_uri()
    if examined.broker_away:
        return problem(
            "broker", f"{where} is away: {examined.broker_away}", "start it, or correct broker_url; tasks stay held"
        )
    return ok("broker", where)


def workers(examined: Examined) -> Finding:
    """Check whether a worker sends held tasks."""
    if examined.broker_away:
        return warn("workers", "they cannot be asked while the broker is away", "see broker")
    if not examined.pinged:
        return warn("workers", "no worker answered", "start one: held tasks are sent by workers that are up")
    stats, up = examined.stats or {}, len(examined.pinged)
    namespace = examined.tasks.wheel.settings.namespace
    idle = {name: why for name in sorted(examined.pinged) if (why := why_idle(namespace, stats.get(name)))}
    if len(idle) == up:
        reasons = "; ".join(f"{name}: {why}" for name, why in list(idle.items())[:_SENDERS])
        finding = problem if examined.counts.total("due") else warn
        return finding(
            "workers",
            f"none of {amount(up, 'worker')} sends the held tasks of namespace {namespace} ({reasons})",
            "start one that has install, this store, this namespace and dispatch=True",
        )
    stock = [name for name in idle if not stats.get(name, {}).get("installed") or stats[name].get("store", "") is None]
    if stock:
        return warn(
            "workers",
            f"{len(stock)} of {amount(up, 'worker')} without wheel_sched_celery or without a store: "
            f"{', '.join(stock[:_SENDERS])}",
            "install it there too: such workers keep ETA tasks in memory and send no held tasks",
        )
    return ok("workers", f"{amount(up, 'worker')} up, all installed, {up - len(idle)} sending held tasks")


def agreement(examined: Examined) -> Finding:
    """Check whether this app and all workers of the namespace have the same horizon and the same lead.

    The lead is how long before its ETA a task leaves the store.
    """
    lines = differing(examined.tasks.wheel.settings, examined.stats or {})
    if lines:
        return warn(
            "settings",
            f"they differ in namespace {examined.tasks.wheel.settings.namespace}: {'. '.join(lines)}",
            "set wheel_horizon and wheel_lead alike in producers and workers: nothing is lost, but a task sent long "
            "before a worker's own lead waits in that worker's memory",
        )
    return ok("settings", "horizon and lead are the same in this app and in every worker that answered")


def late(examined: Examined) -> Finding:
    """Check whether a task still waits in the store more than `LATE_MS` after its due time."""
    late_ms = examined.now_ms - (examined.counts.due_head_ms or examined.now_ms)
    if late_ms > LATE_MS:  # perhaps of an entry of the schedule, which has a finding of its own
        head = examined.tasks.store.list_items("due", limit=1, matches=is_task).found
        late_ms = examined.now_ms - head[0].score_ms if head else 0
    if late_ms > LATE_MS:
        return problem(
            "dispatch",
            f"the first task is {span(late_ms)} overdue",
            "start a worker, or look into its log for celery.*",
        )
    waiting = amount(examined.counts.total("due"), "task")
    return ok("dispatch", f"{waiting} held, none overdue")


def visibility(examined: Examined) -> Finding:
    """Check whether the broker may deliver a task again while it still waits in a worker."""
    wheel = examined.tasks.wheel
    transport = wheel.app.connection_for_write().transport_cls
    default_s = {"redis": VISIBILITY_S, "rediss": VISIBILITY_S, "sqs": SQS_VISIBILITY_S}.get(str(transport))
    longest_ms = None if examined.longest_ms is None else max(0, examined.longest_ms - examined.now_ms)
    longest = "no task is held" if longest_ms is None else f"the longest ETA held is {span(longest_ms)} away"
    if default_s is None:
        return ok("visibility", f"{longest}; {transport} has no visibility timeout")
    options = wheel.app.conf.broker_transport_options or {}
    timeout_ms = int(float(options.get("visibility_timeout", default_s)) * 1000)
    timeout = f"the visibility timeout is {span(timeout_ms)}"
    in_memory_ms = max((_away_ms(row, examined.now_ms) for row in examined.in_memory), default=0)
    if in_memory_ms > timeout_ms:
        return problem(
            "visibility",
            f"{timeout}, and a worker's memory holds a task due in {span(in_memory_ms)}: it will run more than once",
            "install wheel_sched_celery in that worker, with takeover",
        )
    horizon_ms = wheel.settings.horizon
    if horizon_ms is None:
        if longest_ms is not None and longest_ms > timeout_ms:
            return problem(
                "visibility",
                f"{timeout}, {longest}, and after a drain such a task waits in a worker and runs more than once",
                "raise broker_transport_options['visibility_timeout'] above that, or set wheel_horizon again",
            )
        return ok("visibility", f"{timeout}; {longest}")
    if horizon_ms >= timeout_ms:
        return problem(
            "visibility",
            f"{timeout}, shorter than the horizon of {span(horizon_ms)}: tasks between the two run more than once",
            "set wheel_horizon well below the visibility timeout",
        )
    return ok("visibility", f"{timeout}; {longest}, and no worker holds it")


def producers(examined: Examined) -> Finding:
    """Find producers that send ETA tasks without holding them in the store."""
    senders = Counter(examined.senders)
    horizon_ms = examined.tasks.wheel.settings.horizon or 0
    for row in examined.in_memory:
        if _away_ms(row, examined.now_ms) > horizon_ms:
            senders[f"unknown senders of {row['request'].get('name')}"] += 1
    if not senders:
        return ok("producers", "no waiting ETA task was sent by stock Celery")
    named = ", ".join(f"{name} ({count:,})" for name, count in senders.most_common(_SENDERS))
    return warn(
        "producers",
        f"ETA tasks were sent as stock Celery does by {named}",
        "install wheel_sched_celery there: its tasks are then durable at once, and use no memory of workers",
    )


def task_ids(examined: Examined) -> Finding:
    """Check whether two of the next 500 tasks have the same id and ETA, and so share one result."""
    page = examined.tasks.store.list_items("due", limit=MAX_BATCH, matches=is_task)
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


def revoked(examined: Examined) -> Finding:
    """Find revoked tasks that are not announced: the process that revoked them died, or the result backend was away.

    Looks at the first 500 held tasks.
    """
    page = examined.tasks.store.list_items("held", limit=MAX_BATCH, matches=is_task)
    silent = [waiting.id for waiting in map(read, page.found) if waiting.revoked]
    if silent:
        return warn(
            "revoked",
            f"{amount(len(silent), 'revoked task')} will not run, and its result does not say so",
            f"celery wheel cancel {' '.join(silent[:_SENDERS])}",
        )
    return ok("revoked", "every revoked task was announced")


def given_up(examined: Examined) -> Finding:
    """Find tasks that could not be published."""
    dead = examined.counts.total("dead")
    if dead:
        return warn(
            "given up",
            f"{amount(dead, 'task')} could not be published",
            "celery wheel list --state dead says why; celery wheel run-now --state dead --all tries again",
        )
    return ok("given up", "every task could be published")


def _in_memory(examined: Examined, scheduled: Mapping[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Rows of `inspect scheduled` about tasks that a worker has in memory, and that are not in the store."""
    rows = [row for answer in scheduled.values() for row in answer if row.get("eta") and row.get("request")]
    held = (
        {read(found).id for found in examined.tasks.store.list_items("due", limit=LISTED, matches=is_task).found}
        if rows
        else set()
    )
    return [row for row in rows if row["request"]["id"] not in held and not examined.tasks.get(row["request"]["id"])]


def _away_ms(row: Mapping[str, Any], now_ms: int) -> int:
    eta_ms = instant_ms(row["eta"], UTC)
    return 0 if eta_ms is None else eta_ms - now_ms


_CHECKS: Final[tuple[Callable[[Examined], Finding], ...]] = (
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

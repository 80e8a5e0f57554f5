"""The world of Celery tasks: workers and a producer over one store and one task broker.

    producer ─► store (held) ─► dispatchers in workers ─► queue ─► workers ─► function ─► a retry, sent like a task
    producer without wheel-sched ─► queue ─► workers move the message into the store ─► as above

Celery's apps, messages, strategies and requests are real. So are kombu's consumers and everything of wheel-sched. The
task's function follows the scenario and records each run. `checker` judges the results that the producer got, and the
runs.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import celery.worker.request as celery_request
import celery.worker.state as celery_state
from celery import Celery
from celery.app.task import Context
from kombu.exceptions import OperationalError

from wheel_sched.simulation.calls import MS, START_NS
from wheel_sched.simulation.scenario import HandIn, Scenario, Step, draw_faults
from wheel_sched.simulation.scheduler import Process, running
from wheel_sched.simulation.store import StoreServer, remote_store
from wheel_sched.simulation.world import World
from wheel_sched.store.core.delay_store import DelayStore
from wheel_sched_celery.errors import HoldRefused
from wheel_sched_celery.installing import install
from wheel_sched_celery.message.held_task import REVOKED
from wheel_sched_celery.remote_control import commands
from wheel_sched_celery.settings import UNSET, WheelSettings
from wheel_sched_celery.simulation.task_broker import SCHEME, TaskBroker
from wheel_sched_celery.simulation.worker import Worker
from wheel_sched_celery.store_thread import StoreThread
from wheel_sched_celery.wheel import Wheel

TASK = "work"
SPAN_MS = 8_000
COUNTDOWN_MS = 3_000
MAX_RETRIES = 2
LEASE_MS = 5_000  # of the dispatcher in a worker
VISIBILITY_MS = 6_000
QUIET_MS = 8_000  # longer than each lease, pause and backoff
END_MS = 90_000  # everything must have ended by then: see `checker`

SERVER_FAULTS = {
    "store": ("outage", "step-clock", "read-only", "full", "rewind"),
    "broker": ("outage", "redeliver"),
}


@dataclass(slots=True)
class TaskSendResult:
    """The result that the producer got for a task.

    `outcome`: "sent"; "refused": the error proves that the task was not sent; "in doubt": the task may have been sent.
    """

    outcome: str
    eta_ms: int
    at_ns: int


@dataclass(slots=True)
class BodyCall:
    """One run of the task's function.

    `outcome`: "running" during the run, then "ok", "retries" or "failed". If the process dies, it stays "running".
    """

    number: int
    attempt: int
    process: str
    eta_ms: int
    began_ns: int
    began_wall_ms: int
    outcome: str = "running"


def draw(seed: int, *, tasks: int = 20, faults: int | None = None) -> Scenario:
    """Draw a scenario. One in four has few faults, so that the checker accepts few repeats.

    Args:
        seed: decides everything.
        tasks: the number of tasks. Defaults to 20.
        faults: the number of faults. Defaults to 5, or in one scenario of four to 0, 1 or 2.
    """
    rng = random.Random(f"celery {seed}")
    faults = rng.choice((0, 1, 1, 2, *[5] * 12)) if faults is None else faults
    steps: list[Step] = [
        HandIn(
            number,
            at=rng.randrange(SPAN_MS // 2),
            delay=rng.choice((0, 500, 1_500, 3_000, 3_000, 4_000, 5_000)),
            fails=rng.choice((0, 0, 0, 1, 1, 2, MAX_RETRIES + 1)),
            lasts=rng.choice((0, 0, 0, 5, 50, 300)),
            kind=rng.choice(("plain", "plain", "plain", "twice", "foreign", "foreign", "revoked")),
        )
        for number in range(tasks)
    ]
    options = {
        "workers": rng.choice((1, 2, 2)),
        "shards": rng.choice((1, 2)),
        "visibility_ms": rng.choice((0, VISIBILITY_MS)),
        "refuse": rng.choice((0, 1)),
        "ahead_ms": rng.choice((0, 0, 1_500, -1_500)),  # how wrong the clocks of workers are
    }
    steps += draw_faults(
        rng, faults, processes(options), SERVER_FAULTS, calls=80, span_ms=SPAN_MS, pause_ms=(100, 1_000, 3_000, 7_000)
    )
    return Scenario(seed, "celery", rng.getrandbits(32), tuple(steps), options)


def processes(options: dict[str, int]) -> list[str]:
    return [*(f"worker-{number}" for number in range(options["workers"])), "producer"]


class OfEachProcess:
    """Replaces a global object of a module by one object for each simulated process."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._made: dict[Process, Any] = {}

    def mine(self) -> Any:
        process = running.scheduler.process
        if process not in self._made:
            self._made[process] = self._make()
        return self._made[process]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.mine(), name)

    def __contains__(self, item: object) -> bool:
        return item in self.mine()


class SimulatedWheel(Wheel):
    """The integration of an app. Its store is the simulated one."""

    server: StoreServer

    def open_store(self, timeout_ms: int | None = None) -> DelayStore:
        """Overrides `Wheel.open_store`."""
        return remote_store(self.server.world, self.server, self.server.shards)


class SimulatedApp(Celery):
    """A Celery app whose clock is that of the simulated process."""

    def now(self) -> datetime:
        """Overrides `Celery.now`."""
        return _instant(running.scheduler.wall_ns() // MS)


def _is_revoked(item: Any) -> bool:
    return bool(item.state == "held" and item.reason == REVOKED)


def _instant(at_ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at_ms)


def _make_app(name: str) -> Any:
    app = SimulatedApp(name, broker=f"{SCHEME}://", backend="disabled://", set_as_current=False)
    app.conf.update(task_publish_retry=False)
    if name != "foreign":
        install(app, f"{SCHEME}://")
    app.task(_no_body, name=TASK, acks_late=True, max_retries=MAX_RETRIES)
    app.finalize()
    return app


def _no_body(number: int) -> None:
    """An empty function: the pool of the simulated worker runs `CeleryWorld._work` instead."""


# Making an app costs as much as a history. So each host keeps its app, and a process gets a new `Wheel` in it. Apps are
# made before the simulation is installed: then no history differs from its repeat.
_settings: dict[tuple[tuple[str, int], ...], WheelSettings] = {}  # read once for each choice of options
APPS = {name: _make_app(name) for name in ("producer", "foreign", "worker-0", "worker-1")}


class CeleryWorld:
    """Runs a scenario. Keeps the results that the producer got, and the runs of the tasks."""

    def __init__(self, scenario: Scenario) -> None:
        self.world = world = World(scenario)
        self.options = options = scenario.options
        self.store = StoreServer(world, options["shards"])
        self.broker = TaskBroker(world, options["visibility_ms"])
        self.results: dict[int, TaskSendResult] = {}
        self.etas: dict[int, int] = {}  # of each task, fixed by the first try to send it
        self.revoking: set[int] = set()  # tasks that the producer began to revoke
        self.revoked: dict[int, int] = {}  # when the broker got each revoke, in ns of true time
        self.calls: list[BodyCall] = []
        self.sends = {send.number: send for send in scenario.sends}
        self._producers: dict[Any, Any] = {}  # Celery's producer of each thread and app
        self._revoked_ids: Any = OfEachProcess(set)
        for name in processes(options):
            world.add_host(name, self._producer if name == "producer" else self._worker)

    def run(self) -> None:
        """Run the scenario."""
        self.world.begin()
        steps = (fault.amount for fault in self.world.scenario.faults if fault.kind == "step-clock")
        # a task waits longer when the store's clock was set back, and so does each of its retries
        until_ms = END_MS - (MAX_RETRIES + 1) * sum(step for step in steps if step < 0)
        with self._process_globals():
            self.world.run(until_ms, self._ended, QUIET_MS)

    @contextlib.contextmanager
    def _process_globals(self) -> Iterator[None]:
        """Give each process its own copy of the globals of Celery and of the product that belong to a process."""
        ids = self._revoked_ids
        places = [
            (celery_state, "revoked", ids),
            (celery_request, "revoked_tasks", ids),
            (commands, "revoking_thread", OfEachProcess(lambda: StoreThread("control"))),
        ]
        before = [getattr(module, name) for module, name, _ in places]
        for module, name, replacement in places:
            setattr(module, name, replacement)
        try:
            yield
        finally:
            for (module, name, _), original in zip(places, before, strict=True):
                setattr(module, name, original)

    def _ended(self) -> bool:
        """Whether the history has ended: each task has its result, and nothing waits in the store or the queues."""
        return len(self.results) == len(self.sends) and not self.waiting() and not self.broker.unsettled()

    def waiting(self) -> list[Any]:
        """The items that wait in the store, without those that are revoked."""
        return [item for item in self._stored() if not _is_revoked(item)]

    def parked(self) -> list[Any]:
        """Revoked items that stay in the store because no worker could announce them. They never run."""
        return [item for item in self._stored() if _is_revoked(item)]

    def _stored(self) -> list[Any]:
        return [item for item in self.store.contents.items() if item.state != "dead"]

    # -- processes

    def _wheel(self, app: Any) -> SimulatedWheel:
        """Make the integration of a process that starts, as `install` does."""
        visibility_ms = self.options["visibility_ms"]
        app.conf.broker_transport_options = {"visibility_timeout": visibility_ms // 1_000} if visibility_ms else {}
        given = {"shards": self.options["shards"], "on_outage": "refuse" if self.options["refuse"] else "stock"}
        wheel = SimulatedWheel(app, {"url": f"{SCHEME}://", "horizon": UNSET, **given})
        wheel.server = self.store
        key = tuple(sorted(self.options.items()))
        if key not in _settings:
            _settings[key] = wheel.settings
        wheel._settings = _settings[key]
        app.wheel = wheel
        app.amqp.__dict__.pop("send_task_message", None)  # the cached function uses the earlier process's wheel
        return wheel

    def _worker(self) -> Callable[[], object]:
        process = running.scheduler.process
        process.wall_offset_ns = self.options["ahead_ms"] * MS
        app = APPS[process.name.partition(".")[0]]
        self._wheel(app)
        worker = Worker(app, app.tasks[TASK], lambda request: self._work(app, request), self._revoked_ids)
        worker.start()

        def stop() -> None:
            worker.stop()
            commands._finish()

        return stop

    def _producer(self) -> Callable[[], object]:
        """Send each task at its time. A producer that replaces a dead one skips the tasks that have a result."""
        app, foreign = APPS["producer"], APPS["foreign"]
        self._wheel(app)
        scheduler = self.world.scheduler
        for send in sorted(self.sends.values(), key=lambda send: (send.at, send.number)):
            if send.number not in self.results:
                scheduler.sleep_ns(max(0, send.at * MS - scheduler.now_ns))
                self._hand_in(foreign if send.kind == "foreign" else app, send)
        return lambda: None

    # -- sending

    def _hand_in(self, app: Any, send: HandIn) -> None:
        """Send a task as a careful producer does: after an error it repeats the call with the same id and ETA."""
        world, scheduler = self.world, self.world.scheduler
        began_ns = scheduler.now_ns
        # a producer that died in the middle of a call may have sent the task
        outcome = "in doubt" if send.number in self.etas else "refused"
        eta_ms = self.etas.setdefault(send.number, (START_NS + began_ns) // MS + send.delay)
        times = 2 if send.kind == "twice" else 1
        repeats = 3 if self.options["refuse"] else 30
        for _ in range(repeats):
            problem = self._send(app, send.number, 0, eta_ms if send.delay else None)
            if problem is None:
                times, outcome = times - 1, "sent"
                if not times:
                    break
                continue
            if problem != "refused" and outcome != "sent":
                outcome = "in doubt"
            scheduler.sleep_ns(400 * MS)
        world.note("producer", f"task {send.number} is {outcome}")
        self.results[send.number] = TaskSendResult(outcome, eta_ms, began_ns)
        if send.kind == "revoked" and outcome == "sent":
            self._revoke(app, send.number)

    def _send(self, app: Any, number: int, attempt: int, eta_ms: int | None, signature: Any = None) -> str | None:
        """Send one message. Returns None if it was sent, else "refused" or "in doubt"."""
        producer = self._celery_producer(app)
        eta = None if eta_ms is None else _instant(eta_ms)
        try:
            if signature is not None:
                signature.apply_async(producer=producer)
            else:
                app.send_task(TASK, (number,), task_id=f"t{number}", eta=eta, retries=attempt, producer=producer)
        except HoldRefused as error:
            self.world.note("sender", f"task {number}: {error}")
            return "in doubt" if error.in_doubt else "refused"
        except (OSError, OperationalError) as error:
            self.world.note("sender", f"task {number}: {error!r}")
            self._drop_producer(app)
            return "in doubt"
        return None

    def _celery_producer(self, app: Any) -> Any:
        """Celery's producer of this thread, with its own connection."""
        key = running.scheduler.running_task(), app
        producer = self._producers.get(key)
        if producer is None:
            connection = app.connection_for_write()
            producer = self._producers[key] = app.amqp.Producer(connection, auto_declare=False)
        return producer

    def _drop_producer(self, app: Any) -> None:
        producer = self._producers.pop((running.scheduler.running_task(), app))
        producer.connection.collect()

    def _revoke(self, app: Any, number: int) -> None:
        """Revoke a task as `app.control.revoke` does: by a broadcast, which reaches only connected workers."""
        self.revoking.add(number)
        try:
            transport = self._celery_producer(app).connection.transport
            if transport._connection is None:
                self._celery_producer(app).connection.connect()
            transport.server_call("broadcast", lambda server, _: server.broadcast("revoke", f"t{number}"))
        except (OSError, OperationalError):
            self._drop_producer(app)
            return
        self.revoked[number] = self.world.scheduler.now_ns
        self.world.note("producer", f"task {number} is revoked")

    # -- the task's function

    def _work(self, app: Any, request: dict[str, Any]) -> None:
        """Run the task: fail as often as the scenario says. After a failure, send a retry as `Task.retry` does."""
        world, scheduler = self.world, self.world.scheduler
        number, attempt = request["args"][0], request["retries"]
        eta = request["eta"]
        eta_ms = 0 if eta is None else round(datetime.fromisoformat(eta).timestamp() * 1_000)
        send = self.sends[number]
        call = BodyCall(number, attempt, scheduler.process.name, eta_ms, scheduler.now_ns, self.store.wall_ms())
        self.calls.append(call)
        who = f"{call.process}, task {number}, attempt {attempt}"
        world.note(who, "begins")
        if send.lasts:
            scheduler.sleep_ns(send.lasts * MS)
        if attempt >= send.fails:
            call.outcome = "ok"
        elif attempt >= MAX_RETRIES:
            call.outcome = "failed"
        else:
            self._retry(app, request, call)
        world.note(who, call.outcome)

    def _retry(self, app: Any, request: dict[str, Any], call: BodyCall) -> None:
        """Repeat the call that sends the retry until the call succeeds.

        If it never succeeds, the worker does not acknowledge the message, so the broker delivers it again.
        """
        scheduler = self.world.scheduler
        eta_ms = scheduler.wall_ns() // MS + COUNTDOWN_MS
        signature = app.tasks[TASK].signature_from_request(
            Context(request), [call.number], {}, eta=_instant(eta_ms), retries=call.attempt + 1
        )
        while self._send(app, call.number, call.attempt + 1, eta_ms, signature) is not None:
            scheduler.sleep_ns(400 * MS)
        call.outcome = "retries"

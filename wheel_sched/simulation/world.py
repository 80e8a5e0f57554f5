"""A simulated world: processes, servers, the network between them, and the faults of a scenario.

A process reaches a server only by `World.call`. There, time passes, other threads run, and the faults strike. What a
server does is one step: it is done or not, and nothing sees the middle of it.
"""

from __future__ import annotations

import contextlib
import random
import traceback
from collections.abc import Callable
from typing import TypeVar

from wheel_sched.simulation.scenario import CALL_FAULTS, Fault, Scenario
from wheel_sched.simulation.scheduler import Process, Scheduler, Task, running
from wheel_sched.simulation.trace import Trace

T = TypeVar("T")

START_NS = 1_700_000_000_000_000_000
MS = 1_000_000


class Lost(Exception):
    """A call was lost. `performed`: the server performed it, only the reply was lost."""

    def __init__(self, performed: bool) -> None:
        super().__init__("the reply was lost" if performed else "the request was lost")
        self.performed = performed


class ConnectionRefused(Exception):
    """The server is away: the connection was refused, so it has not seen the call."""


class SimulatedServer:
    """A server: its clock, and whether it answers.

    Args:
        world: the world.
        name: as scenarios name it.
    """

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.process = Process(name, 1)
        self.name = name
        self.away_until_ns = 0
        self.steps_back_ms = 0  # how far its clock went back in all

    def wall_us(self) -> int:
        world = self.world
        return (START_NS + world.scheduler.now_ns + self.process.wall_offset_ns) // 1_000

    def wall_ms(self) -> int:
        return self.wall_us() // 1_000

    def monotonic_ms(self) -> int:
        return 1_000 + self.world.scheduler.now_ns // MS

    def strike(self, fault: Fault) -> None:
        """Suffer a fault of `SERVER_FAULTS`."""
        if fault.kind == "outage":
            self.away_until_ns = self.world.scheduler.now_ns + fault.amount * MS
        elif fault.kind == "step-clock":
            self.process.wall_offset_ns += fault.amount * MS
            self.steps_back_ms += max(0, -fault.amount)
        else:
            raise ValueError(f"{self.name} does not know the fault {fault.kind}")


class Host:
    """A place where a process of the system runs, and runs again after it died.

    Args:
        world: the world.
        name: as scenarios name it.
        start: starts the process's work in a task of the new process; returns what `stop` ends it with.
        again_ms: how long after a death the process is started again.
    """

    def __init__(self, world: World, name: str, start: Callable[[], Callable[[], object]], again_ms: int) -> None:
        self._world = world
        self.name = name
        self._start = start
        self._again_ms = again_ms
        self._stop: Callable[[], object] | None = None
        self.calls = 0  # over all lives
        self.lives = 0
        self.process = Process(f"{name}.0", 0)

    def boot(self) -> None:
        """Start a new process here."""
        self.lives += 1
        world = self._world
        self.process = process = Process(f"{self.name}.{self.lives}", 1_000 * self.lives + world.number_of(self.name))
        process.drift_ppm = world.drift_ppm
        world.hosts_of[process] = self
        world.note(process.name, "starts")
        self._stop = None

        def main() -> None:
            self._stop = self._start()

        world.scheduler.spawn(process, "main", main)

    def die(self, why: str) -> None:
        """End the process at once; it starts again later."""
        if not self.process.alive:
            return
        self.process.alive = False
        self._world.note(self.process.name, f"dies: {why}")
        self._world.later(self._again_ms, self.boot)

    def stop_in_order(self) -> None:
        """Stop the process as its user would; it starts again later."""
        stop, process = self._stop, self.process
        if stop is None or not process.alive:
            return
        self._world.note(process.name, "is stopped")

        def main() -> None:
            stop()
            process.alive = False
            self._world.note(process.name, "has ended")
            self._world.later(self._again_ms, self.boot)

        self._world.scheduler.spawn(process, "stop", main)


class World:
    """See the module.

    Args:
        scenario: what happens.
        most_steps: see `TooManySteps`. Defaults to 40,000, twenty times what a history of 20 messages takes.
    """

    def __init__(self, scenario: Scenario, *, most_steps: int = 40_000) -> None:
        self.scenario = scenario
        self.rng = random.Random(scenario.order)
        self.scheduler = running.scheduler = Scheduler(self.rng, START_NS, most_steps)
        self.scheduler.on_failure = self._thread_failed
        self.trace = Trace()
        self.drift_ppm = self.rng.choice((0, 0, 100, -100))
        self.hosts: dict[str, Host] = {}
        self.hosts_of: dict[Process, Host] = {}
        self.servers: dict[str, SimulatedServer] = {}
        self.broken: list[str] = []  # what no part of the product may ever do, such as a thread that ends by an error
        self.struck: list[tuple[Fault, str]] = []  # the faults that have struck, each with the call that it hit
        self._fates = 0  # actions of `later` that are not over
        self._faults: dict[tuple[str, int], list[Fault]] = {}
        for fault in scenario.faults:
            if fault.kind in CALL_FAULTS:
                self._faults.setdefault((fault.target, fault.at), []).append(fault)

    def number_of(self, name: str) -> int:
        return [*self.hosts].index(name) + 1

    def add_host(self, name: str, start: Callable[[], Callable[[], object]], again_ms: int = 700) -> Host:
        """Add a place for a process. It starts with `begin`."""
        host = self.hosts[name] = Host(self, name, start, again_ms)
        return host

    def begin(self) -> None:
        """Start all processes, and arrange the faults that come at a time."""
        for host in self.hosts.values():
            host.boot()
        for fault in self.scenario.faults:
            if fault.kind not in CALL_FAULTS:
                self.later(fault.at, lambda fault=fault: self._strike(fault))  # type: ignore[misc]

    def later(self, delay_ms: int, action: Callable[[], object]) -> None:
        """Do something after `delay_ms` of true time, in no process."""
        self._fates += 1

        def wait() -> None:
            self.scheduler.sleep_ns(delay_ms * MS)
            action()
            self._fates -= 1

        self.scheduler.spawn(self.scheduler.home, "fate", wait)

    def note(self, who: str, what: str) -> None:
        """Add an event to the trace."""
        self.trace.add(self.scheduler.now_ns, who, what)

    @property
    def now_ms(self) -> int:
        return self.scheduler.now_ns // MS

    # -- calls

    def call(self, server: SimulatedServer, what: str, perform: Callable[[], T]) -> T:
        """Call a server from the process that runs now.

        Raises:
            Lost: the request or the reply was lost.
            ConnectionRefused: the server is away.
        """
        scheduler = self.scheduler
        task = scheduler.running_task()
        host = self.hosts_of.get(task.process)
        faults: list[Fault] = []
        if host is not None:
            faults = self._faults.pop((host.name, host.calls), [])
            host.calls += 1
        who = f"{task.process.name}/{task.name}"
        scheduler.block(self._latency_ns())
        for fault in faults:
            self.struck.append((fault, f"{server.name} {what}"))
            self.note(who, f"{server.name} {what}: {fault.kind}")
            if fault.kind == "pause":
                self._pause(task, fault.amount)
            elif fault.kind == "kill-before" and host is not None:
                host.die("killed before a call")
                self._never()
        if server.away_until_ns > scheduler.now_ns:
            self.note(who, f"{server.name} {what}: refused")
            scheduler.block(self._latency_ns())
            raise ConnectionRefused
        kinds = {fault.kind for fault in faults}
        if "lose-request" in kinds or "late-request" in kinds:
            for fault in faults:
                if fault.kind == "late-request":
                    self.later(fault.amount, lambda: self._perform_late(who, f"{server.name} {what}", perform))
            scheduler.block(50 * MS)
            raise Lost(performed=False)
        answer = perform()
        self.note(who, f"{server.name} {what}")
        if "repeat-request" in kinds:
            answer = perform()
        if "kill-after" in kinds and host is not None:
            host.die("killed after a call")
            self._never()
        if "lose-reply" in kinds:
            scheduler.block(50 * MS)
            raise Lost(performed=True)
        late_ns = sum(fault.amount for fault in faults if fault.kind == "late-reply") * MS
        scheduler.block(self._latency_ns() + late_ns)
        return answer

    def _perform_late(self, who: str, what: str, perform: Callable[[], object]) -> None:
        self.note(who, f"{what}: arrives late")
        with contextlib.suppress(Exception):  # nobody reads the answer
            perform()

    def _latency_ns(self) -> int:
        return 20_000 + int(self.rng.random() * 400_000)

    def _pause(self, task: Task, amount_ms: int) -> None:
        task.process.paused_until_ns = self.scheduler.now_ns + amount_ms * MS
        self.scheduler.pause()

    def _never(self) -> None:
        """The calling process is dead: its code does not go on."""
        self.scheduler.block(None)
        raise AssertionError("a dead process runs")

    # -- faults

    def _strike(self, fault: Fault) -> None:
        self.struck.append((fault, ""))
        self.note("world", str(fault))
        if fault.target in self.hosts:
            host = self.hosts[fault.target]
            if fault.kind == "kill":
                host.die("killed")
            else:
                host.stop_in_order()
        else:
            self.servers[fault.target].strike(fault)

    def _thread_failed(self, task: Task, error: BaseException) -> None:
        where = "".join(traceback.format_exception(error))[-1_500:]
        self.broken.append(f"the thread {task.process.name}/{task.name} ended by {error!r}\n{where}")

    def run(self, until_ms: int, ended: Callable[[], bool], quiet_ms: int) -> None:
        """Run until true time has reached `until_ms`, or until `ended` has been true for `quiet_ms` without a break.

        In the quiet time, whatever a fault may have set free still comes, such as a lease that runs out.
        """

        def watch() -> None:
            since_ns: int | None = None
            while True:
                self.scheduler.sleep_ns(500 * MS)
                if self._fates or not ended():
                    since_ns = None
                    continue
                since_ns = self.scheduler.now_ns if since_ns is None else since_ns
                if self.scheduler.now_ns - since_ns >= quiet_ms * MS:
                    self.scheduler.over = True

        self.scheduler.spawn(self.scheduler.home, "watch", watch)
        self.scheduler.run(until_ms * MS)

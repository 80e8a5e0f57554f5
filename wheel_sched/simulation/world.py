"""A simulated world: processes, servers, the network between them, and the faults of a scenario.

A process reaches a server only by `World.call`. During this call time passes, other threads run, and faults strike. A
server performs a call in one step: no other code runs in the middle of a step.
"""

from __future__ import annotations

import contextlib
import random
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from wheel_sched.simulation.calls import MS, START_NS, ConnectionRefused, Lost
from wheel_sched.simulation.scenario import CALL_FAULTS, Fault, Scenario
from wheel_sched.simulation.scheduler import Process, Scheduler, Task, running
from wheel_sched.simulation.trace import Trace
from wheel_sched.store.core import call as store_call

T = TypeVar("T")


class SimulatedServer:
    """Base class of a simulated server: its clock, its outages, and the tasks that wait for records.

    Args:
        world: the world that the server belongs to.
        name: the name of the server in scenarios.
    """

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.process = Process(name, 1)
        self.name = name
        self.away_until_ns = 0
        # For each step of the clock: virtual time in ns, and what the clock showed before and after the step, in ms.
        self.steps: list[tuple[int, int, int]] = []
        self._waiting: list[tuple[Callable[[], object], Task]] = []

    @property
    def steps_back_ms(self) -> int:
        """The sum of all backward steps of the server's clock, in ms."""
        return sum(max(0, before_ms - after_ms) for _, before_ms, after_ms in self.steps)

    def wall_us(self) -> int:
        now_ns, process = self.world.scheduler.now_ns, self.process
        return (START_NS + now_ns + process.ahead_ns(now_ns) + process.wall_offset_ns) // 1_000

    def wall_ms(self) -> int:
        return self.wall_us() // 1_000

    def monotonic_ms(self) -> int:
        return 1_000 + self.world.scheduler.now_ns // MS

    def wait_until(self, ready: Callable[[], object], timeout_ms: float) -> bool:
        """Let the calling task wait until `ready` returns true. Returns False if it is still false after the timeout.

        The server calls `ready` after each request. A client waits in this way for records, as in a real long poll.
        """
        if ready():
            return True
        if timeout_ms <= 0:
            return False
        scheduler = self.world.scheduler
        waiting = ready, scheduler.running_task()
        self._waiting.append(waiting)
        if scheduler.block(int(timeout_ms * MS)):
            return True
        self._waiting.remove(waiting)
        return bool(ready())

    def answer_waiting(self) -> None:
        """Wake each task that waits in `wait_until` and whose `ready` returns true now."""
        if self._waiting:
            left = []
            for waiting in self._waiting:
                ready, task = waiting
                if not task.process.alive:
                    continue
                if ready():
                    self.world.scheduler.wake(task)
                else:
                    left.append(waiting)
            self._waiting = left

    def strike(self, fault: Fault) -> None:
        """Let a fault hit this server. This class knows "outage", "step-clock", "drift"; others raise `ValueError`."""
        if fault.kind == "outage":
            self.away_until_ns = self.world.scheduler.now_ns + fault.amount * MS
        elif fault.kind == "step-clock":
            before_ms = self.wall_ms()
            self.process.wall_offset_ns += fault.amount * MS
            self.steps.append((self.world.scheduler.now_ns, before_ms, self.wall_ms()))
        elif fault.kind == "drift":
            self.process.drift(self.world.scheduler.now_ns, fault.amount)
        else:
            raise ValueError(f"{self.name} does not know the fault {fault.kind}")


class Host:
    """Starts one process of the system, and starts it again after it has died.

    Args:
        world: the world that the process belongs to.
        name: the name of the process in scenarios.
        start: starts the work of a new process, in a task of that process. Returns the function that stops the work.
        again_ms: how long after its death the process starts again.
    """

    def __init__(self, world: World, name: str, start: Callable[[], Callable[[], object]], again_ms: int) -> None:
        self._world = world
        self.name = name
        self._start = start
        self._again_ms = again_ms
        self._stop: Callable[[], object] | None = None
        self.calls = 0  # how many calls all processes of this host have made
        self.lives = 0
        self.drift_ppm: int | None = None  # drift of this host's clock; None: that of all other hosts
        self.process = Process(f"{name}.0", 0)

    def boot(self) -> None:
        """Start a new process of this host."""
        self.lives += 1
        world = self._world
        self.process = process = Process(f"{self.name}.{self.lives}", 1_000 * self.lives + world.number_of(self.name))
        process.drift_ppm = world.drift_ppm if self.drift_ppm is None else self.drift_ppm
        world.hosts_of[process] = self
        world.note(process.name, "starts")
        self._stop = None

        def main() -> None:
            self._stop = self._start()

        world.scheduler.spawn(process, "main", main)

    def start_another(self, for_ms: int) -> None:
        """Start one more process with the same work. It is shut down after `for_ms`, and does not start again."""
        world = self._world
        other = world.add_host(f"{self.name}+{len(world.hosts)}", self._start)
        other.boot()
        world.later(for_ms, lambda: other.stop_in_order(again=False))

    def die(self, why: str) -> None:
        """Kill the process. A new one starts after `again_ms`."""
        if not self.process.alive:
            return
        self.process.alive = False
        self._world.note(self.process.name, f"dies: {why}")
        self._world.later(self._again_ms, self.boot)

    def stop_in_order(self, *, again: bool = True) -> None:
        """Shut the process down as its user would. If `again`, a new one starts after `again_ms`."""
        stop, process = self._stop, self.process
        if not again and stop is None and process.alive:  # `start` has not returned yet
            self._world.later(self._again_ms, lambda: self.stop_in_order(again=False))
        if stop is None or not process.alive:
            return
        self._stop = None  # so that a second stop does nothing
        self._world.note(process.name, "is stopped")

        def main() -> None:
            stop()
            process.alive = False
            self._world.note(process.name, "has ended")
            if again:
                self._world.later(self._again_ms, self.boot)

        self._world.scheduler.spawn(process, "stop", main)


class World:
    """A simulated world that runs one scenario.

    Args:
        scenario: what happens from outside.
        most_steps: after more steps of the scheduler the run ends with `TooManySteps`. Defaults to 40,000, twenty
            times what a run with 20 messages takes.
    """

    def __init__(self, scenario: Scenario, *, most_steps: int = 40_000) -> None:
        self.scenario = scenario
        self.rng = random.Random(scenario.order)
        self.scheduler = running.scheduler = Scheduler(self.rng, START_NS, most_steps)
        self.scheduler.on_failure = self._thread_failed
        store_call._process[:] = [0, ""]  # otherwise the first token would depend on the history before
        self.trace = Trace()
        self.drift_ppm = self.rng.choice((0, 0, 100, -100))
        self.hosts: dict[str, Host] = {}
        self.hosts_of: dict[Process, Host] = {}
        self.servers: dict[str, SimulatedServer] = {}
        self.broken: list[str] = []  # events that no fault excuses, such as a thread that ended with an error
        self.struck: list[tuple[Fault, str]] = []  # the faults that have struck, each with the call that it hit
        self.on_strike: Callable[[Fault, str], object] = lambda fault, call: None  # called before each fault strikes
        self._pending = 0  # how many actions of `later` are not done yet
        self._faults: dict[tuple[str, str, int], list[Fault]] = {}  # by process, name of the call, and number
        self._aimed: Counter[tuple[str, str]] = Counter()  # how often a process made a call that faults name
        self._aims = {(fault.target, fault.call) for fault in scenario.faults if fault.call}
        for fault in scenario.faults:
            if fault.kind in CALL_FAULTS or fault.call:
                self._faults.setdefault((fault.target, fault.call, fault.at), []).append(fault)

    def number_of(self, name: str) -> int:
        return [*self.hosts].index(name) + 1

    def add_host(self, name: str, start: Callable[[], Callable[[], object]], again_ms: int = 700) -> Host:
        """Add a host (`Host` explains the arguments). `World.begin` then starts the first process of the host."""
        host = self.hosts[name] = Host(self, name, start, again_ms)
        return host

    def begin(self) -> None:
        """Start all processes, and schedule the faults that strike at a fixed time."""
        for host in self.hosts.values():
            host.boot()
        for fault in self.scenario.faults:
            if fault.kind not in CALL_FAULTS and not fault.call:
                self.later(fault.at, lambda fault=fault: self._strike(fault))  # type: ignore[misc]

    def later(self, delay_ms: int, action: Callable[[], object]) -> None:
        """Run `action` after `delay_ms` of virtual time, in a task that belongs to no simulated process."""
        self._pending += 1

        def wait() -> None:
            self.scheduler.sleep_ns(delay_ms * MS)
            action()
            self._pending -= 1

        self.scheduler.spawn(self.scheduler.outside, "fate", wait)

    def note(self, who: str, what: str) -> None:
        """Add an event to the trace."""
        self.trace.add(self.scheduler.now_ns, who, what)

    @property
    def now_ms(self) -> int:
        return self.scheduler.now_ns // MS

    # -- calls

    def call(self, server: SimulatedServer, what: str, perform: Callable[[], T]) -> T:
        """Call a server from the simulated process that runs now.

        Raises:
            Lost: the request or the reply was lost.
            ConnectionRefused: the server is away.
        """
        scheduler = self.scheduler
        task = scheduler.running_task()
        process = task.process
        host = self.hosts_of.get(process)
        faults: Sequence[Fault] = ()
        who, what = f"{process.name}/{task.name}", f"{server.name} {what}"
        if host is not None:
            faults = self._faults.pop((host.name, "", host.calls), ())
            host.calls += 1
            if self._aims:
                faults = [*faults, *self._aimed_at(host.name, what)]
        task.calling = what
        scheduler.block(self._latency_ns())
        task.calling = ""
        if faults:
            return self._call_with_faults(server, who, what, perform, task, faults)
        self._check_there(server, who, what)
        answer = perform()
        server.answer_waiting()
        self.trace.add(scheduler.now_ns, who, what)
        if self._aims:
            self._strike_after(server, what)
        scheduler.block(self._latency_ns())
        return answer

    def _aimed_at(self, target: str, what: str) -> Sequence[Fault]:
        """Count this call, and take out the faults that name it and strike it now.

        `target`: the host that makes the call, or the server that gets it.
        """
        if (target, what) not in self._aims:
            return ()
        number = self._aimed[target, what]
        self._aimed[target, what] += 1
        return self._faults.pop((target, what, number), ())

    def _strike_after(self, server: SimulatedServer, what: str) -> None:
        for fault in self._aimed_at(server.name, what):
            self._strike(replace(fault, at=self.now_ms, call=""))

    def _check_there(self, server: SimulatedServer, who: str, what: str) -> None:
        if server.away_until_ns > self.scheduler.now_ns:
            self.note(who, f"{what}: refused")
            self.scheduler.block(self._latency_ns())
            raise ConnectionRefused

    def _call_with_faults(
        self,
        server: SimulatedServer,
        who: str,
        what: str,
        perform: Callable[[], T],
        task: Task,
        faults: Sequence[Fault],
    ) -> T:
        scheduler, host = self.scheduler, self.hosts_of[task.process]
        for fault in faults:
            self.on_strike(fault, what)
            self.struck.append((fault, what))
            self.note(who, f"{what}: {fault.kind}")
            if fault.kind == "pause":
                self._pause(task, fault.amount)
            elif fault.kind == "kill-before":
                host.die("killed before a call")
                self._never()
        self._check_there(server, who, what)
        kinds = {fault.kind for fault in faults}
        if "lose-request" in kinds or "late-request" in kinds:
            for fault in faults:
                if fault.kind == "late-request":
                    self.later(fault.amount, lambda: self.perform_late(server, who, what, perform))
            scheduler.block(50 * MS)
            raise Lost(performed=False)
        answer = perform()
        self.note(who, what)
        if "repeat-request" in kinds:
            answer = perform()
        server.answer_waiting()
        if self._aims:
            self._strike_after(server, what)
        if "kill-after" in kinds:
            host.die("killed after a call")
            self._never()
        if "lose-reply" in kinds:
            scheduler.block(50 * MS)
            raise Lost(performed=True)
        late_ns = sum(fault.amount for fault in faults if fault.kind == "late-reply") * MS
        scheduler.block(self._latency_ns() + late_ns)
        return answer

    def perform_late(self, server: SimulatedServer, who: str, what: str, perform: Callable[[], object]) -> None:
        """Let a call reach its server after its caller has stopped waiting for the answer."""
        self.note(who, f"{what}: arrives late")
        with contextlib.suppress(Exception):  # nobody reads the answer
            perform()
        server.answer_waiting()

    def _latency_ns(self) -> int:
        return 20_000 + int(self.rng.random() * 400_000)

    def _pause(self, task: Task, amount_ms: int) -> None:
        task.process.paused_until_ns = self.scheduler.now_ns + amount_ms * MS
        self.scheduler.pause()

    def _never(self) -> None:
        """Stop the code of the calling process, which was killed. This never returns."""
        self.scheduler.block(None)
        raise AssertionError("a dead process runs")

    # -- faults

    def _strike(self, fault: Fault) -> None:
        self.on_strike(fault, "")
        self.struck.append((fault, ""))
        self.note("world", str(fault))
        if fault.target in self.hosts:
            host = self.hosts[fault.target]
            if fault.kind == "kill":
                host.die("killed")
            elif fault.kind == "start":
                host.start_another(fault.amount)
            elif fault.kind == "drift":
                host.drift_ppm = fault.amount
                host.process.drift(self.scheduler.now_ns, fault.amount)
            else:
                host.stop_in_order()
        else:
            self.servers[fault.target].strike(fault)

    def _thread_failed(self, task: Task, error: BaseException) -> None:
        where = "".join(traceback.format_exception(error))[-1_500:]
        self.broken.append(f"the thread {task.process.name}/{task.name} ended by {error!r}\n{where}")

    def run(self, until_ms: int, ended: Callable[[], bool], quiet_ms: int) -> None:
        """Run until virtual time reaches `until_ms`, or until `ended` has been true for `quiet_ms` without a break.

        Late effects of a fault, such as the end of a lease, can still occur in the quiet time.
        """

        def watch() -> None:
            since_ns: int | None = None
            while True:
                self.scheduler.sleep_ns(500 * MS)
                if self._pending or not ended():
                    since_ns = None
                    continue
                since_ns = self.scheduler.now_ns if since_ns is None else since_ns
                if self.scheduler.now_ns - since_ns >= quiet_ms * MS:
                    self.scheduler.over = True

        self.scheduler.spawn(self.scheduler.outside, "watch", watch)
        self.scheduler.run(until_ms * MS)

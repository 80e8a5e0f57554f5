"""The scheduler: it runs one task at a time, in an order that a seed decides, and keeps virtual time.

A task runs until it waits. Then the scheduler picks the next task at random, from a seeded generator. When no task can
run, virtual time jumps to the next deadline of a task. Nothing else decides the order of events, so the same seed gives
the same run.

A simulated process has its own clocks, and it can be killed or paused. A killed process runs no more code, not even a
`finally`: its greenlets are kept, suspended, for as long as this interpreter lives. So a program that simulates many
runs does so in child processes that it replaces now and then (`wheel_sched.simulation.runner`).
Source: FoundationDB's simulation, TigerBeetle's VOPR.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any

from greenlet import getcurrent, greenlet

_kept_tasks: list[Task] = []  # a greenlet that is freed runs its `finally` blocks, and a killed process must not do so


class TooManySteps(Exception):
    """A simulated run took more steps than the limit allows: a thread loops for ever, or time does not pass."""


class Process:
    """A simulated operating-system process: its clocks, and whether it lives.

    Args:
        name: its name in the trace.
        pid: what `os.getpid` returns in this process.
        drift_ppm: how much faster than virtual time the clocks of the process run, in millionths. Defaults to 0.
    """

    __slots__ = (
        "_drifts_since_ns",
        "_gained_ns",
        "alive",
        "drift_ppm",
        "name",
        "paused_until_ns",
        "pid",
        "wall_offset_ns",
    )

    def __init__(self, name: str, pid: int, drift_ppm: int = 0) -> None:
        self.name = name
        self.pid = pid
        self.drift_ppm = drift_ppm
        self.wall_offset_ns = 0
        self.alive = True
        self.paused_until_ns = 0
        self._drifts_since_ns = 0
        self._gained_ns = 0

    def drift(self, now_ns: int, drift_ppm: int) -> None:
        """Change the speed of the clocks from the virtual time `now_ns` on. The clocks do not jump."""
        self._gained_ns = self.ahead_ns(now_ns)
        self._drifts_since_ns = now_ns
        self.drift_ppm = drift_ppm

    def ahead_ns(self, now_ns: int) -> int:
        """How far the clocks of this process are ahead of virtual time because of their drift, in ns."""
        drift = self.drift_ppm
        return self._gained_ns + ((now_ns - self._drifts_since_ns) * drift // 1_000_000 if drift else 0)

    def __repr__(self) -> str:
        return f"<Process {self.name}{'' if self.alive else ' (dead)'}>"


class Task:
    """A thread of a simulated process: a greenlet that the scheduler runs, with the state of its waiting."""

    __slots__ = ("calling", "generation", "greenlet", "name", "notified", "process", "switch", "thread")

    def __init__(self, process: Process, name: str) -> None:
        self.process = process
        self.name = name
        self.greenlet: greenlet | None = None
        self.switch: Callable[[], object] = lambda: None
        self.generation = 0  # each wake-up adds 1; a deadline with an older number no longer counts
        self.notified = False
        self.calling = ""  # the call to a server that is under way
        self.thread: Any = None

    def __repr__(self) -> str:
        return f"<Task {self.process.name}/{self.name}>"


def tasks_of(process: Process) -> list[Task]:
    """The tasks that a process has started, ended ones included."""
    return [task for task in _kept_tasks if task.process is process]


class Scheduler:
    """Runs tasks, one at a time, and keeps virtual time.

    Args:
        rng: decides which task runs next, among those that can run.
        start_ns: the wall clock's time at the start, in nanoseconds since 1970.
        most_steps: after more steps the run ends with `TooManySteps`.
    """

    def __init__(self, rng: random.Random, start_ns: int, most_steps: int = 200_000) -> None:
        self.rng = rng
        self.start_ns = start_ns
        self.now_ns = 0  # virtual time since the start, without the drift of any process's clock
        self.steps = 0
        self.current: Task | None = None
        self.outside = Process("world", 1)  # the process whose clock is read while no task runs
        self.over = False  # set by the world when nothing more can happen
        self.on_failure: Callable[[Task, BaseException], None] = lambda task, error: None
        self._most_steps = most_steps
        self._hub = getcurrent()
        self._ready: list[Task] = []
        self._deadlines: list[tuple[int, int, Task, int]] = []
        self._numbers = 0
        self._until_ns = 0
        self._random = rng.random
        self._last: Task | None = None

    # -- for the world

    def spawn(self, process: Process, name: str, work: Callable[[], object]) -> Task:
        """Start a task of a process. A task may call this, and so may code outside of all tasks."""
        task = Task(process, name)

        def run() -> None:
            try:
                work()
            except BaseException as error:
                self.on_failure(task, error)
            finally:
                task.generation += 1

        task.greenlet = greenlet(run, self._hub)
        task.switch = task.greenlet.switch
        _kept_tasks.append(task)
        self._ready.append(task)
        return task

    def run(self, until_ns: int) -> None:
        """Run tasks until virtual time has reached `until_ns`, until `over` is set, or until no task can run any more.

        Raises:
            TooManySteps: the run took more than `most_steps` steps.
        """
        self._until_ns = until_ns
        # A task that waits switches to the next task by itself. This loop switches after a task that has ended.
        while (task := self._next()) is not None:
            self.current = task
            task.switch()
            self.current = None
        if self.steps > self._most_steps:
            raise TooManySteps(f"more than {self._most_steps} steps; last: {self._last}")

    def _next(self) -> Task | None:
        """Return the task that runs next. If none can run now, let time pass first. None: the run ends."""
        ready = self._ready
        while not self.over:
            if not ready and not self._advance():
                return None
            if len(ready) > 1:
                place = int(self._random() * len(ready))
                ready[place], ready[-1] = ready[-1], ready[place]
            task = ready.pop()
            process = task.process
            if not process.alive:
                continue
            if process.paused_until_ns > self.now_ns:
                self._number(process.paused_until_ns, task, -1)
                continue
            self.steps += 1
            if self.steps > self._most_steps:
                self._last = task
                return None
            return task
        return None

    def _advance(self) -> bool:
        """Let time pass until a task can run. Returns False if no task can run before `until_ns`."""
        deadlines = self._deadlines
        while deadlines:
            at_ns, _, task, generation = deadlines[0]
            if at_ns > self._until_ns:
                self.now_ns = self._until_ns
                return False
            heapq.heappop(deadlines)
            if generation == task.generation and task.process.alive:
                task.generation += 1
            elif generation != -1:  # -1: its process was paused
                continue
            if at_ns > self.now_ns:
                self.now_ns = at_ns
            self._ready.append(task)
            return True
        return False

    def _number(self, at_ns: int, task: Task, generation: int) -> None:
        self._numbers += 1
        heapq.heappush(self._deadlines, (at_ns, self._numbers, task, generation))

    # -- for tasks

    def running_task(self) -> Task:
        """The task whose code calls this.

        Raises:
            RuntimeError: the caller is not a task, so it cannot wait.
        """
        if self.current is None:
            raise RuntimeError("the world itself cannot wait: only tasks can")
        return self.current

    def pause(self) -> None:
        """Let other tasks that can run do so before the calling task continues."""
        task = self.current
        if task is not None:
            self._ready.append(task)
            following = self._next()
            if following is not task:
                self.current = following
                (self._hub if following is None else following).switch()

    def block(self, timeout_ns: int | None) -> bool:
        """Let the calling task wait until `wake` is called for it, or until `timeout_ns` have passed (None: no limit).

        Returns whether `wake` was called.

        Raises:
            RuntimeError: the caller is not a task.
        """
        task = self.current
        if task is None:
            raise RuntimeError("the world itself cannot wait: only tasks can")
        task.notified = False
        if timeout_ns is not None:
            self._numbers = number = self._numbers + 1
            until_ns = self.now_ns + timeout_ns if timeout_ns > 0 else self.now_ns
            heapq.heappush(self._deadlines, (until_ns, number, task, task.generation))
        following = self._next()
        if following is not task:
            self.current = following
            if following is None:
                self._hub.switch()
            else:
                following.switch()
        return task.notified

    def wake(self, task: Task) -> None:
        """Let a task that waits in `block` run again."""
        task.generation += 1
        task.notified = True
        self._ready.append(task)

    def sleep_ns(self, duration_ns: int) -> None:
        """Let the calling task wait for a duration of virtual time."""
        self.block(duration_ns)

    # -- clocks of the process whose code runs

    @property
    def process(self) -> Process:
        return self.outside if self.current is None else self.current.process

    def monotonic_ns(self) -> int:
        now_ns, task = self.now_ns, self.current
        return 1_000_000_000 + now_ns + (0 if task is None else task.process.ahead_ns(now_ns))

    def wall_ns(self) -> int:
        process = self.process
        return self.start_ns + self.now_ns + process.ahead_ns(self.now_ns) + process.wall_offset_ns


class Running:
    """Holds the scheduler of the simulation that runs now. An interpreter runs one simulation at a time."""

    scheduler: Scheduler


running = Running()

"""Puts the simulated threads, clocks and randomness into the modules of some packages, and takes them out again.

The packages are wheel-sched and its integrations, with Celery or APScheduler. They import `threading`, `time`,
`datetime`, `queue`, `random`, `os`, `uuid`, `secrets` and `concurrent.futures` as any program does. While the
simulation is installed, these names in their modules mean the simulated versions. This applies to module globals, to
attributes and base classes of classes, and to default arguments of functions. No code of these packages checks
whether it is simulated.

Modules of other packages do not change. An object that exists before the installation keeps its real threads and
clocks. So make all objects of a history while the simulation is installed.
"""

from __future__ import annotations

import concurrent.futures
import datetime
import os
import queue
import random
import secrets
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any

from wheel_sched.simulation import futures, locks, queues, threads
from wheel_sched.simulation.clocks import SimulatedDatetime
from wheel_sched.simulation.scheduler import running


class _Part(ModuleType):
    """A copy of a module, in which some names have other values."""

    def __init__(self, original: ModuleType, **replaced: Any) -> None:
        super().__init__(original.__name__)
        self.__dict__.update(original.__dict__)
        self.__dict__.update(replaced)


def _monotonic() -> float:
    return running.scheduler.monotonic_ns() / 1e9


def _monotonic_ns() -> int:
    return running.scheduler.monotonic_ns()


def _time() -> float:
    return running.scheduler.wall_ns() / 1e9


def _time_ns() -> int:
    return running.scheduler.wall_ns()


def _sleep(seconds: float) -> None:
    running.scheduler.block(int(seconds * 1e9))


def _urandom(size: int) -> bytes:
    return running.scheduler.rng.randbytes(size)


def _getpid() -> int:
    return running.scheduler.process.pid


def _uuid4() -> uuid.UUID:
    return uuid.UUID(int=running.scheduler.rng.getrandbits(128), version=4)


def _token_hex(nbytes: int | None = None) -> str:
    return _urandom(nbytes or 32).hex()


class _Random(random.Random):
    """A `random.Random` that, without a seed, takes its seed from the generator of the running simulation."""

    def __new__(cls, *args: Any) -> _Random:
        return super().__new__(cls)

    def __init__(self, seed: Any = None) -> None:
        super().__init__(running.scheduler.rng.getrandbits(64) if seed is None else seed)


def _chosen(name: str) -> Any:
    def choose(*args: Any, **kwargs: Any) -> Any:
        return getattr(running.scheduler.rng, name)(*args, **kwargs)

    return choose


_CHOOSERS = ("random", "randrange", "randint", "shuffle", "choice", "choices", "sample", "uniform", "getrandbits")

THREADING = {
    "Thread": threads.SimulatedThread,
    "Timer": threads.SimulatedTimer,
    "Lock": locks.SimulatedLock,
    "RLock": locks.SimulatedRLock,
    "Condition": locks.SimulatedCondition,
    "Event": locks.SimulatedEvent,
    "Semaphore": locks.SimulatedSemaphore,
    "BoundedSemaphore": locks.SimulatedSemaphore,
    "local": threads.SimulatedLocal,
    "current_thread": threads.current_thread,
    "get_ident": threads.get_ident,
}
TIME = {
    "monotonic": _monotonic,
    "monotonic_ns": _monotonic_ns,
    "perf_counter": _monotonic,
    "perf_counter_ns": _monotonic_ns,
    "time": _time,
    "time_ns": _time_ns,
    "sleep": _sleep,
}
QUEUE = {"SimpleQueue": queues.SimulatedSimpleQueue, "Queue": queues.SimulatedSimpleQueue}
RANDOM = {"Random": _Random, **{name: _chosen(name) for name in _CHOOSERS}}
OS = {"urandom": _urandom, "getpid": _getpid}
UUID = {"uuid4": _uuid4}
SECRETS = {"token_hex": _token_hex}
DATETIME = {"datetime": SimulatedDatetime}
FUTURES = {
    "ThreadPoolExecutor": queues.SimulatedThreadPoolExecutor,
    "Future": futures.SimulatedFuture,
    "wait": futures.wait,
}

_REPLACED: tuple[tuple[ModuleType, dict[str, Any]], ...] = (
    (threading, THREADING),
    (time, TIME),
    (datetime, DATETIME),
    (queue, QUEUE),
    (random, RANDOM),
    (os, OS),
    (uuid, UUID),
    (secrets, SECRETS),
    (concurrent.futures, FUTURES),
)


def _table() -> dict[int, Any]:
    """The simulated object for each object that is replaced, by the `id` of the replaced object."""
    table: dict[int, Any] = {}
    for module, names in _REPLACED:
        table[id(module)] = _Part(module, **names)
        for name, replacement in names.items():
            table[id(getattr(module, name))] = replacement
    table[id(concurrent)] = _Part(concurrent, futures=table[id(concurrent.futures)])
    return table


@contextmanager
def substituted(packages: Sequence[str]) -> Iterator[None]:
    """Within this context, all loaded modules of these packages use the simulated threads, clocks and randomness."""
    table = _table()
    undo: list[tuple[Any, str, Any]] = []

    def replace(owner: Any, name: str, value: Any) -> None:
        undo.append((owner, name, owner.__dict__[name] if name != "__bases__" else owner.__bases__))
        setattr(owner, name, value)

    prefixes = tuple(f"{package}." for package in packages)
    modules = [
        module
        for name, module in sorted(sys.modules.items())
        if (name in packages or name.startswith(prefixes)) and not name.startswith("wheel_sched.simulation")
    ]
    try:
        seen: set[int] = set()
        for module in modules:
            for name, value in list(vars(module).items()):
                if id(value) in table:
                    replace(module, name, table[id(value)])
                elif type(value) is threading.local:  # a global of the module
                    replace(module, name, threads.SimulatedLocal())
                elif isinstance(value, type) and value.__module__ == module.__name__ and id(value) not in seen:
                    seen.add(id(value))
                    _replace_in_class(value, table, replace, undo)
                elif isinstance(value, FunctionType) and value.__module__ == module.__name__:
                    _replace_defaults(value, table, undo)
        yield
    finally:
        for owner, name, value in reversed(undo):
            setattr(owner, name, value)


def _replace_in_class(owner: type, table: dict[int, Any], replace: Any, undo: list[tuple[Any, str, Any]]) -> None:
    if any(id(base) in table and base is not threading.local for base in owner.__bases__):
        replace(owner, "__bases__", tuple(table.get(id(base), base) for base in owner.__bases__))
    for name, value in list(vars(owner).items()):
        plain = value.__func__ if isinstance(value, staticmethod) else value
        if id(plain) in table:
            found = table[id(plain)]
            replace(owner, name, staticmethod(found) if isinstance(value, staticmethod) else found)
        elif isinstance(plain, FunctionType):
            _replace_defaults(plain, table, undo)


def _replace_defaults(function: FunctionType, table: dict[int, Any], undo: list[tuple[Any, str, Any]]) -> None:
    defaults, named = function.__defaults__, function.__kwdefaults__
    if defaults and any(id(value) in table for value in defaults):
        undo.append((function, "__defaults__", defaults))
        function.__defaults__ = tuple(table.get(id(value), value) for value in defaults)
    if named and any(id(value) in table for value in named.values()):
        undo.append((function, "__kwdefaults__", named))
        function.__kwdefaults__ = {name: table.get(id(value), value) for name, value in named.items()}

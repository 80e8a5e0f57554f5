"""`substituted` replaces a package's threads and clocks by simulated ones, and restores the real ones afterwards."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from wheel_sched.simulation.substitution import substituted

SOURCE = """
import threading
import time
from time import monotonic

def wait(clock=time.monotonic, *, sleep=time.sleep):
    return clock, sleep

class Timer(threading.Thread):
    clock = staticmethod(time.monotonic)

    def __init__(self, clock=time.monotonic, *, sleep=time.sleep):
        self.clocks = clock, sleep
"""


@pytest.fixture
def module() -> Iterator[ModuleType]:
    """A module of a package named `ticking`, which uses threads and clocks in every way that is replaced."""
    made = ModuleType("ticking")
    sys.modules["ticking"] = made
    exec(SOURCE, made.__dict__)  # noqa: S102 - the text above
    yield made
    del sys.modules["ticking"]


def used(module: ModuleType) -> list[Any]:
    """Everything that the module takes from the standard library."""
    wait: Callable[..., Any] = module.wait
    timer = module.Timer
    defaults = [*wait.__defaults__, *wait.__kwdefaults__.values()]  # type: ignore[attr-defined]
    methods = [*timer.__init__.__defaults__, *timer.__init__.__kwdefaults__.values()]
    return [module.threading, module.time, module.monotonic, timer.__bases__[0], timer.clock, *defaults, *methods]


def test_everything_is_replaced_and_restored(module: ModuleType) -> None:
    """Globals, base classes, class attributes and default arguments are simulated while the block runs. Afterwards they
    are as before, also the defaults of methods.
    """
    real = used(module)
    assert real[3:] == [threading.Thread, time.monotonic, *[time.monotonic, time.sleep] * 2]
    with substituted(["ticking"]):
        assert not set(map(id, used(module))) & set(map(id, real))
    assert [*map(id, used(module))] == [*map(id, real)]

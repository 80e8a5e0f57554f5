"""If a finalizer, a weak reference or the garbage collector calls a wheel in the middle of the wheel's work, the wheel
stays consistent.

Any code that makes or frees an object may run Python code. In the compiled core, this Python code runs in the middle of
a C function. A fault there would crash the interpreter or lose an entry.
"""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from wheel_sched.wheel import EntryState, TimingWheel

Core = type[TimingWheel[Any]]


@pytest.fixture(autouse=True)
def eager_collector() -> Iterator[None]:
    """Makes the garbage collector run at every second allocation, so that it interrupts the wheel at every possible
    place."""
    before = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    yield
    gc.set_threshold(*before)


class Calling:
    """A task whose finalizer calls a function."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call

    def __del__(self) -> None:
        self.call()


class Hostile:
    """A task that raises when it is compared, hashed or tested for truth."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise AssertionError("compared")

    def __bool__(self) -> bool:
        raise AssertionError("asked for its truth")


def test_tasks_are_held_and_nothing_else(core: Core) -> None:
    """No method of the wheel compares or hashes a task, or tests it for truth."""
    wheel = core()
    entries = [wheel.schedule(Hostile(), deadline_ms) for deadline_ms in (1, 1, 50, 10**6, 10**30)]
    entries[0].touch(5)
    entries[1].reschedule(7)
    wheel.next_expiry()
    assert len(wheel.snapshot()) == 5
    assert [entry.cancel() for entry in entries[:2]] == [EntryState.CANCELLED] * 2
    assert len(wheel.advance(10**31)) == 3


def test_a_finalizer_that_cancels_reschedules_and_schedules(core: Core) -> None:
    """A cancel frees a task whose finalizer calls many methods of the same wheel. The wheel stays consistent."""
    wheel = core()
    siblings = [wheel.schedule(number, 100 + number % 7) for number in range(50)]

    def meddle() -> None:
        siblings[0].cancel()
        siblings[1].reschedule(10**6)
        siblings[2].touch(5000)
        wheel.schedule("by a finalizer", 100)
        wheel.advance(101)
        wheel.next_expiry()
        wheel.snapshot()

    wheel.schedule(Calling(meddle), 100).cancel()
    pending = len(wheel)
    assert siblings[0].state is EntryState.CANCELLED
    assert (len(wheel.snapshot()), sum(wheel.counters.levels)) == (pending, pending)
    assert len(wheel.advance(10**7)) == pending


def test_a_finalizer_sees_its_entry_cancelled(core: Core) -> None:
    """While the finalizer of a cancelled entry's task runs, the entry is CANCELLED and has no task."""
    wheel = core()
    seen: list[Any] = []
    entry = wheel.schedule(Calling(lambda: seen.append((entry.state, entry.task, len(wheel)))), 100)
    entry.cancel()
    assert seen == [(EntryState.CANCELLED, None, 0)]


def test_weak_references_call_back_into_the_wheel(core: Core) -> None:
    """The callback of a weak reference may call the wheel, as a finalizer may."""
    wheel = core()
    task = Calling(lambda: None)
    other = wheel.schedule("other", 200)
    reference = weakref.ref(task, lambda _: other.reschedule(300))
    entry = wheel.schedule(task, 100)
    del task
    entry.cancel()
    assert reference() is None
    assert (wheel.next_expiry(), len(wheel)) == (300, 1)


def test_a_collection_in_the_middle_of_anything_finds_the_wheel_whole(core: Core) -> None:
    """Garbage is collected while the wheel works, and its finalizers cancel and schedule entries. The wheel stays
    consistent."""
    rng = random.Random(8)
    wheel = core(wheel_size=16)
    alive: list[Any] = []
    by_finalizers = []

    class Cycle:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            if alive:
                alive.pop(rng.randrange(len(alive))).cancel()
            by_finalizers.append(wheel.schedule("late", rng.randrange(2000)))

    handed_out = 0
    if core.__module__ == "wheel_sched.wheel.pure":
        gc.disable()  # the pure core must not be called by a finalizer while it loops over its dicts
    try:
        for now_ms in range(0, 2000, 5):
            Cycle()
            alive += [wheel.schedule(number, now_ms + rng.randrange(3000)) for number in range(3)]
            if now_ms % 3 == 0:
                wheel.snapshot()
                wheel.next_expiry()
            due = wheel.advance(now_ms)
            handed_out += len(due)
            if not gc.isenabled():
                gc.collect(0)
            assert len(wheel) == sum(wheel.counters.levels) == len(wheel.snapshot())
    finally:
        gc.enable()
    assert by_finalizers
    gc.collect()
    left = len(wheel)
    assert len(wheel.advance(10**7)) == left


def test_a_forgotten_wheel_is_collected_with_all_that_waits_in_it(core: Core) -> None:
    """If a wheel, its entries and their tasks only refer to each other, the garbage collector frees all of them."""

    class Task:
        pass

    gone = []
    for deadline_ms in (1, 5000, 10**30):
        wheel = core()
        for _ in range(20):
            task: Any = Task()
            task.entry = wheel.schedule(task, deadline_ms)
            task.wheel = wheel
            gone.append(weakref.ref(task))
    del wheel, task
    gc.collect()
    assert {reference() for reference in gone} == {None}


def test_a_kept_entry_keeps_its_wheel_usable(core: Core) -> None:
    """If only an entry refers to its wheel, the entry can still be cancelled and moved."""
    first, second = (lambda wheel: [wheel.schedule(name, 100) for name in "ab"])(core())
    gc.collect()
    assert first.cancel() is EntryState.CANCELLED
    assert second.reschedule(500)
    assert repr(second) == "<TimerTaskEntry pending deadline_ms=500 task='b'>"


def test_long_lists_and_long_chains_are_let_go_of_without_recursion(core: Core) -> None:
    """Two large structures are freed without a recursion error: 100,000 entries of one slot, and a chain in which
    each entry is the task of the next."""
    gc.set_threshold(100_000, 50, 50)
    wheel = core()
    for number in range(100_000):
        wheel.schedule(number, 100)
    del wheel
    gc.collect()
    wheel = core()
    chain: Any = None
    for _ in range(100_000):
        chain = wheel.schedule(chain, 100)
        wheel.advance(100)
    del chain, wheel
    gc.collect()


def test_entries_are_made_by_a_wheel_only(core: Core) -> None:
    """The compiled entry class cannot be subclassed. If it is called without a wheel, it makes a cancelled entry."""
    kind: Any = type(core().schedule("task", 1))
    if core.__module__.endswith("_wheel_c"):  # where a wrong pointer would end the interpreter
        entry = kind()
        assert (entry.state, entry.cancel()) == (EntryState.CANCELLED, EntryState.CANCELLED)
        assert (entry.touch(5), entry.reschedule(5), entry.finish()) == (False, False, None)
        with pytest.raises(TypeError):
            type("Sub", (kind,), {})


@pytest.mark.slow
def test_the_interpreter_ends_with_timers_pending(core: Core) -> None:
    """When the interpreter ends, it frees wheels, entries and tasks with finalizers in any order. The exit code is
    0."""
    name = core.__module__
    code = (
        f"from {name} import TimingWheel\n"
        "class Task:\n"
        "    def __del__(self):\n"
        "        for entry in kept: entry.cancel()\n"
        "        wheel.schedule('late', 5)\n"
        "wheel = TimingWheel()\n"
        "kept = [wheel.schedule(Task(), n) for n in (1, 100, 10**6, 10**30)]\n"
        "other = TimingWheel()\n"
        "for n in range(1000): other.schedule(Task(), n * 1000)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr

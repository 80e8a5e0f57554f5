"""`blocking` and `awaited` make methods from plans, with the name, the arguments and the docstring of the plan."""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import Generator
from typing import Any, TypeVar

import pytest

from wheel_sched import store as store_package
from wheel_sched.errors import InDoubt, StoreUnavailable
from wheel_sched.store import AsyncDelayStore, DelayStore, open_store
from wheel_sched.store.core.call import Call, Plan
from wheel_sched.store.core.counts import Look
from wheel_sched.store.core.delay_store import AsyncCapability, Capability, awaited, blocking, values_of
from wheel_sched.store.core.plans import Plans
from wheel_sched.store.rooms import ROOMS

T = TypeVar("T")


def add_up(plans: Plans, numbers: list[int], *, twice: bool = False) -> Plan[int]:
    """The sum of the numbers."""
    yield plans.everywhere(lambda: Look(0, 0))
    return sum(numbers) * (1 + twice)


class Sums(Capability):
    """A capability with one method."""

    add_up = blocking(add_up)


class AsyncSums(AsyncCapability):
    """The asyncio twin of `Sums`."""

    add_up = awaited(add_up)


def test_a_blocking_method_runs_its_plan() -> None:
    """A method that `blocking` makes passes positional and keyword arguments to its plan."""
    with open_store("memory:") as store:
        assert Sums(store).add_up([1, 2]) == 3
        assert Sums(store).add_up(numbers=[1, 2], twice=True) == 6


def test_an_asyncio_method_runs_the_same_plan() -> None:
    """A method that `awaited` makes runs the plan, and awaits the calls of its backend."""

    class Backend:
        async def execute(self, calls: list[Call[Any]], now_ms: int | None = None) -> list[Any]:
            return [None] * len(calls)

        async def check_server(self) -> None: ...

        async def close(self) -> None: ...

    assert asyncio.run(AsyncSums(AsyncDelayStore(Backend())).add_up([1, 2], twice=True)) == 6


def test_a_method_looks_like_its_plan() -> None:
    """A method that is made from a plan has the plan's name, arguments and docstring, which `help` and editors show."""
    for method in (Sums.add_up, AsyncSums.add_up):
        assert (method.__name__, method.__doc__) == ("add_up", "The sum of the numbers.")
        assert list(inspect.signature(method).parameters) == ["plans", "numbers", "twice"]
    assert inspect.iscoroutinefunction(AsyncSums.add_up)
    assert (DelayStore.claim.__doc__ or "").startswith("Claim up to")


def test_a_wrong_argument_is_a_type_error() -> None:
    """A call with wrong arguments raises TypeError before anything is sent."""
    wrong: Any = Sums(open_store("memory:"))
    with pytest.raises(TypeError, match="thrice"):
        wrong.add_up([], thrice=True)


def test_a_plan_without_calls_needs_no_round_trip() -> None:
    """If a plan makes no calls, the facade returns the plan's result, even if the store is closed."""

    def nothing() -> Generator[list[Call[Any]], list[Any], str]:
        return "done"
        yield []

    store = open_store("memory:")
    store.close()
    assert store.run(nothing()) == "done"


def test_an_error_goes_before_a_doubt() -> None:
    """If one call failed and another is in doubt, the error is raised. An `InDoubt` alone means that no call failed."""
    doubt, error = InDoubt("written, but perhaps not safe"), StoreUnavailable("away")
    with pytest.raises(StoreUnavailable, match="away"):
        values_of([doubt, 1, error])
    with pytest.raises(InDoubt):
        values_of([1, doubt])
    assert values_of([1, 2]) == [1, 2]


@pytest.mark.parametrize("room", [room.folder for room in ROOMS])
def test_the_class_of_each_room_is_a_name_of_the_store(room: str) -> None:
    """The class of every capability can be imported from `wheel_sched.store`, such as `FairShares`."""
    module = f"{store_package.__name__}.{room}"
    found = [value for value in vars(importlib.import_module(module)).values() if isinstance(value, type)]
    faces = [one for one in found if issubclass(one, Capability | AsyncCapability)]
    own = [one.__name__ for one in faces if one.__module__.startswith(module)]
    assert [name for name in own if name not in store_package.__all__] == []

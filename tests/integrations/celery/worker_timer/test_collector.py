"""The worker freezes its own long-lived objects, so that the garbage collector skips them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from wheel_sched_celery import install
from wheel_sched_celery.worker_timer import CollectorStep


class Circle:
    """An object that refers to itself, so that only the garbage collector frees it."""

    me: Circle


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    """After the test, unfreeze all objects, collect garbage, and freeze the rest."""
    yield
    gc.unfreeze()
    gc.collect()
    gc.freeze()


@pytest.fixture
def app() -> Iterator[Celery]:
    with Celery("collected", broker="memory://", set_as_current=False) as app:
        yield app


def worker(app: Any) -> Any:
    return SimpleNamespace(app=app, steps=[])


def test_old_objects_are_frozen_and_garbage_is_not(app: Celery) -> None:
    """The worker collects garbage before it freezes. Frozen garbage would never be freed."""
    install(app, None)
    step = CollectorStep(worker(app))
    circle = Circle()
    circle.me = circle
    garbage = weakref.ref(circle)
    del circle
    step.create(worker(app))
    assert garbage() is None
    assert step.info(None)["wheel_collector"]["frozen_objects"] > 1_000
    step.start(worker(app))
    step.stop(worker(app))


@pytest.mark.parametrize(("horizon", "included"), [("2s", True), (None, False)])
def test_without_a_horizon_it_does_not_run(app: Celery, horizon: str | None, included: bool) -> None:
    """With `horizon=None` the worker's step for the collector does not run, like its timer."""
    install(app, "redis://nowhere.invalid", horizon=horizon)
    assert CollectorStep(worker(app)).include_if(worker(app)) is included

"""Fixtures: an app with held tasks, without a worker."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery
from wheel_sched_celery import install
from wheel_sched_celery.management import HeldTasks

_numbers = itertools.count()


def broker_of(url: str) -> str:
    """The URL by which kombu reaches a Redis server at its Unix socket."""
    return url.replace("unix://", "redis+socket://").replace("?db=", "?virtual_host=")


def make_app(url: str, namespace: str, **settings: Any) -> Celery:
    """Makes an app whose broker, results and store are on one server."""
    app = Celery("managed", broker=broker_of(url), backend=broker_of(url), set_as_current=False)
    install(app, url, namespace=namespace, **settings)
    app.conf.result_backend_thread_safe = True
    app.conf.task_default_queue = f"queue-{namespace}"

    @app.task(name="mail.send", shared=False)
    def send(number: int) -> int:
        return number

    @app.task(name="bill.write", shared=False)
    def write(number: int) -> int:
        return number

    return app


@pytest.fixture(params=[1, 3], ids=["one-shard", "three-shards"])
def app(request: pytest.FixtureRequest, redis_url: str) -> Iterator[Celery]:
    app = make_app(redis_url, f"m{next(_numbers)}", shards=request.param)
    yield app
    # results that somebody still holds (pytest does, of a failed test) ask a server that is about to go
    app.backend.remove_pending_result = lambda result: result
    app.wheel.close()
    app.close()  # which leaves the connections of the result backend to the garbage collector
    app.backend.result_consumer.stop()
    app.backend.client.connection_pool.disconnect()


@pytest.fixture
def other_app() -> Callable[..., Celery]:
    """Makes an app, see `make_app`. The test closes it."""
    return make_app


@pytest.fixture
def tasks(app: Celery) -> HeldTasks:
    return HeldTasks(app)


@pytest.fixture
def ids(app: Celery) -> dict[str, str]:
    """The ids of four held tasks: mail in one and two hours, one for another queue in three hours, a bill in a day."""
    mail, bill = app.tasks["mail.send"], app.tasks["bill.write"]
    return {
        "one": mail.apply_async((1,), countdown=3600).id,
        "two": mail.apply_async((2,), eta=datetime.now(UTC) + timedelta(hours=2)).id,
        "three": mail.apply_async((3,), countdown=3 * 3600, queue="other", priority=7, expires=86_400).id,
        "bill": bill.apply_async((4,), {}, countdown=86_400).id,
    }

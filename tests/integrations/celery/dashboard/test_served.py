"""The dashboard over a server, with tasks of a real producer."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from celery import Celery, chain
from wheel_sched_celery import install
from wheel_sched_celery.dashboard.part import PART

from tests.integrations.dashboard_visitor import Visiting
from wheel_sched.dashboard import dashboard, everyone
from wheel_sched.store import DelayStore, open_store

if TYPE_CHECKING:
    from tests.servers.valkey import TemporaryServer

pytestmark = [
    pytest.mark.real,
    pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning"),  # Celery's own, of redis-py 8
]

_numbers = itertools.count()


@pytest.fixture
def app(real_server: TemporaryServer) -> Iterator[Celery]:
    """An application whose broker, results and store are on one server."""
    namespace = f"dash{next(_numbers)}-{uuid4().hex[:6]}"
    broker = real_server.url.replace("unix://", "redis+socket://").replace("?db=", "?virtual_host=")
    made = Celery("shown", broker=broker, backend=broker, set_as_current=False)
    install(made, real_server.url, namespace=namespace, shards=2)
    made.conf.result_backend_thread_safe = True

    @made.task(name="mail.send", shared=False)
    def send(number: int) -> int:
        return number

    yield made
    made.backend.remove_pending_result = lambda result: result
    made.wheel.close()
    made.close()
    made.backend.result_consumer.stop()
    made.backend.client.connection_pool.disconnect()


def test_tasks_of_a_producer_are_shown_and_moved_without_its_application(
    real_server: TemporaryServer, app: Celery, memory: DelayStore, open_visitor: Any
) -> None:
    """The store's settings are enough to read, reschedule and purge."""
    send = app.tasks["mail.send"]
    first = chain(send.s(1), send.s(2)).apply_async(countdown=3600).parent.id
    second = send.apply_async((3,), countdown=7200).id
    extras = {"celery_namespace": app.wheel.settings.namespace}
    visitor = open_visitor(memory, {"store": real_server.url}, extras=extras)
    assert [task["id"] for task in visitor.call("/tasks")["tasks"]] == [first, second]
    (found,) = visitor.call(f"/tasks/{first}")["messages"]
    assert [(one["kind"], one["name"]) for one in found["followers"]] == [("then", "mail.send")]
    assert "mail.send" in visitor.page(f"/tasks/{first}")
    assert visitor.act("reschedule-task", task=[first], at="2040-01-01T00:00:00Z")["done"] == 1
    assert [task["id"] for task in visitor.call("/tasks")["tasks"]] == [second, first]
    assert visitor.act("purge-task", task=[second])["done"] == 1
    assert app.AsyncResult(second).state == "PENDING"
    visitor.page("/")


def test_a_task_is_revoked_with_the_running_application(app: Celery, memory: DelayStore, open_visitor: Any) -> None:
    """The result of the revoked task is marked REVOKED. A pickled task is not revoked, because the dashboard does not
    read its body.
    """
    send = app.tasks["mail.send"]
    task_id = send.apply_async((1,), countdown=3600).id
    pickled = send.apply_async((1,), countdown=3600, serializer="pickle").id
    visitor = open_visitor(memory, {"store": "memory:"}, extras={"celery_app": app})
    assert visitor.call("/tasks")["can_revoke"] is True
    assert "actions/revoke-task" in visitor.page("/tasks")
    assert "actions/revoke-task" in visitor.page(f"/tasks/{task_id}")
    found = visitor.preview("revoke-task", task=[pickled])
    assert (found["count"], "pickled" in found["warning"]) == (0, True)
    assert visitor.act("revoke-task", task=[task_id])["words"] == "1 task revoked"
    assert app.AsyncResult(task_id).state == "REVOKED"
    assert visitor.call("/tasks")["counts"]["due"] == 1
    found = visitor.preview("purge-task", task=[pickled])
    assert visitor.execute("purge-task", found["token"], task=[pickled])["done"] == 1


def test_the_error_of_a_retry_is_shown(app: Celery, memory: DelayStore, open_visitor: Any) -> None:
    """The result backend of the running application has the error of the last attempt. It is read as text."""
    task_id = app.tasks["mail.send"].apply_async((1,), countdown=3600, retries=2).id
    app.backend.mark_as_retry(task_id, ValueError("no stamps <b>"), traceback="")
    visitor = open_visitor(memory, {"store": "memory:"}, extras={"celery_app": app})
    (found,) = visitor.call(f"/tasks/{task_id}")["messages"]
    assert (found["retries"], found["last_error"]) == (2, "ValueError: no stamps <b>")
    assert "no stamps &lt;b&gt;" in visitor.page(f"/tasks/{task_id}")
    app.backend.client.set(app.backend.get_key_for_task(task_id), b"not json")
    assert visitor.call(f"/tasks/{task_id}")["messages"][0]["last_error"] == ""


def test_an_absent_namespace_of_a_server_is_not_created(
    real_server: TemporaryServer, memory: DelayStore, open_visitor: Any, app: Celery
) -> None:
    """Looking for tasks writes nothing, with and without an application."""
    import redis

    namespace = app.wheel.settings.namespace
    with redis.Redis.from_url(real_server.url) as client:
        for extras in ({"celery_namespace": namespace}, {"celery_app": app}):
            visitor = open_visitor(memory, {"store": real_server.url}, extras=extras)
            assert "a Celery worker" in visitor.page("/tasks")
        assert client.keys(f"*{namespace}*") == []


def test_a_mounted_dashboard_gets_the_application(real_server: TemporaryServer, app: Celery) -> None:
    """`dashboard(..., celery_app=app)` shows the tasks of that application, whatever its own store is."""
    task_id = app.tasks["mail.send"].apply_async((1,), countdown=3600).id
    with open_store(real_server.url, namespace=f"core-{app.wheel.settings.namespace}") as store:
        for home in (real_server.url, store):
            made = dashboard(home, access=everyone("read"), namespace=store.namespace, celery_app=app)
            found = Visiting(made, PART).call("/tasks")
            assert ([task["id"] for task in found["tasks"]], found["can_revoke"]) == ([task_id], True)
            made.close()

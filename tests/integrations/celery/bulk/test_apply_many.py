"""`apply_many` stores the same messages as a loop over `apply_async`."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery, signals
from kombu.exceptions import OperationalError
from wheel_sched_celery import HoldRefused, TaskCall, apply_many, install
from wheel_sched_celery.hold.message_template import MessageTemplate
from wheel_sched_celery.management import HeldTasks

from tests.servers.valkey import temporary_server
from wheel_sched.errors import StoreUnavailable
from wheel_sched.store.push.push_form import decode_push

pytestmark = pytest.mark.usefixtures("real_server")

_numbers = itertools.count()


def broker_of(url: str) -> str:
    return url.replace("unix://", "redis+socket://").replace("?db=", "?virtual_host=")


def make_app(url: str, **settings: Any) -> Celery:
    app = Celery("bulk", broker=broker_of(url), set_as_current=False)
    install(app, url, namespace=f"b{next(_numbers)}", **settings)

    @app.task(name="bulk.add", shared=False)
    def add(x: Any, y: Any = None) -> None: ...

    return app


@pytest.fixture
def app(redis_url: str) -> Iterator[Celery]:
    app = make_app(redis_url)
    yield app
    app.wheel.close()
    app.close()


def shape(app: Celery, task_id: str) -> tuple[Any, ...]:
    """The stored form of a held task, without its random parts: id and delivery tag."""
    (waiting,) = HeldTasks(app).get(task_id)
    form = decode_push(waiting.found.body)
    message = json.loads(form.pieces[0].replace(task_id.encode(), b"ID"))
    message["properties"].pop("delivery_tag")
    found = waiting.found
    return (
        form.target,
        list(message.items()),
        found.id.replace(task_id, "ID"),
        found.score_ms,
        found.topic,
        [ref.replace(task_id, "ID") for ref in found.refs],
        (found.route or "").replace(task_id, "ID"),
    )


ARGUMENTS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((1,), {}),
    ((1, "two"), {}),
    (([1, {"deep": [None, True, 1.5]}],), {"y": {"k": "v"}}),
    (("quote ' \" back\\slash \n line \x00 nul",), {}),
    (("ünïcode \U0001f600",), {"y": "grüße"}),
    (("x" * 5000,), {}),
    (({"eta": "2030-01-01", "id": "same"},), {}),
    ((datetime(2030, 1, 1, tzinfo=UTC),), {}),
    (("mark", 10**30), {}),
    ((-0.0, 1e300), {}),
    ((), {"x": 1}),
]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"queue": "elsewhere", "priority": 3},
    {"headers": {"tenant": "acme", "note": 'a "quoted" one'}},
    {"ignore_result": True, "time_limit": 30, "soft_time_limit": 20},
    {"compression": "zlib"},
    {"link": "signature"},
    {"expires": 7200},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "+".join(options) or "none")
def test_each_message_is_that_of_apply_async(app: Celery, options: dict[str, Any]) -> None:
    """The messages of `apply_many` and of single calls of `apply_async` are equal byte for byte, except for their
    ids."""
    add = app.tasks["bulk.add"]
    if "link" in options:
        options = {"link": add.si(7)}
    eta = datetime.now(UTC) + timedelta(hours=1)
    ids = apply_many(add, [TaskCall(args, kwargs) for args, kwargs in ARGUMENTS], eta=eta, **options)
    alone = [add.apply_async(args, kwargs, eta=eta, **options).id for args, kwargs in ARGUMENTS]
    for one, many in zip(alone, ids, strict=True):
        wanted, got = shape(app, one), shape(app, many)
        if "expires" in options:  # counted from each call's own now
            wanted, got = wanted[0:1] + wanted[3:], got[0:1] + got[3:]
        assert got == wanted


def test_a_loop_is_not_needed_for_thousands(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """`apply_many` reads tuples from a generator. Celery makes the first message. It is the template for the others,
    which differ only in id and arguments."""
    filled = []
    fill = MessageTemplate.fill

    def counted(form: MessageTemplate, *arguments: Any) -> Any:
        filled.append(arguments[0])
        return fill(form, *arguments)

    monkeypatch.setattr(MessageTemplate, "fill", counted)
    ids = apply_many(app.tasks["bulk.add"], ((number, "x") for number in range(1234)), countdown=600)
    assert len(set(ids)) == 1234
    assert filled == ids
    found = {waiting.id: waiting for waiting in HeldTasks(app).select()}
    assert set(found) == set(ids)
    assert found[ids[1233]].headers["argsrepr"] == "(1233, 'x')"


def test_each_call_may_have_its_own_eta_and_id(app: Celery) -> None:
    """Each call may have its own ETA and task id. A task that is due within the horizon is sent at once, as by
    `apply_async`."""
    soon, later = datetime.now(UTC), datetime.now(UTC) + timedelta(days=3)
    ids = apply_many(
        app.tasks["bulk.add"],
        [TaskCall((1,), eta=later, task_id="mine"), TaskCall((2,), eta=soon), TaskCall((3,))],
        eta=datetime.now(UTC) + timedelta(days=1),
    )
    assert ids[0] == "mine"
    assert [waiting.id for waiting in HeldTasks(app).select()] == [ids[2], "mine"]
    with app.connection_for_read() as connection:
        message = connection.SimpleQueue("celery").get(timeout=10)
        message.ack()
    assert message.headers["id"] == ids[1]


def test_handlers_of_before_task_publish_see_each_task(app: Celery) -> None:
    """The handler is called for each task. The store gets the message as the handler has changed it."""
    seen: list[str] = []

    def handler(headers: dict[str, Any], **_: Any) -> None:
        seen.append(headers["id"])
        headers["stamped_by"] = "handler"

    signals.before_task_publish.connect(handler)
    try:
        ids = apply_many(app.tasks["bulk.add"], [(1,), (2,)], countdown=600)
    finally:
        signals.before_task_publish.disconnect(handler)
    assert seen == ids
    assert HeldTasks(app).get(ids[1])[0].headers["stamped_by"] == "handler"


def test_arguments_that_do_not_fit_are_refused(app: Celery) -> None:
    """Wrong arguments raise the error of `apply_async`. No task of the batch is sent."""
    with pytest.raises(TypeError):
        apply_many(app.tasks["bulk.add"], [(1,), (1, 2, 3)], countdown=600)
    with pytest.raises(ValueError, match="needs countdown"):
        apply_many(app.tasks["bulk.add"], [(1,)])
    assert list(HeldTasks(app).select()) == []


def test_an_app_without_the_integration_sends_one_by_one(redis_url: str) -> None:
    """`apply_many` also works with an app on which the integration is not installed."""
    app = Celery("plain", broker=broker_of(redis_url), set_as_current=False)

    @app.task(name="bulk.add", shared=False)
    def add(x: Any) -> None: ...

    assert len(apply_many(add, [(1,), (2,)], countdown=600)) == 2
    with app.connection_for_read() as connection:
        assert connection.SimpleQueue("celery").qsize() == 2
    app.close()


def test_a_mistake_in_a_later_batch_leaves_those_before_it_stored(app: Celery) -> None:
    """The 1,001st call has wrong arguments, so `apply_many` raises. The two batches before it are stored, also the one
    that was still being stored."""
    calls = [(number,) for number in range(1000)] + [(1, 2, 3)]
    with pytest.raises(TypeError):
        apply_many(app.tasks["bulk.add"], calls, countdown=600)
    assert HeldTasks(app).counts().total("due") == 1000


@pytest.mark.parametrize("on_outage", ["stock", "refuse"])
@pytest.mark.parametrize("when", ["sending", "storing"])
def test_a_store_that_goes_away_between_batches_loses_none(
    on_outage: str, when: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first batch is stored. With `on_outage="stock"`, the other tasks are sent to the broker. With "refuse", the
    error says how many tasks were sent."""
    app = make_app(redis_url, on_outage=on_outage)
    queue = app.conf.task_default_queue = f"between-{on_outage}-{when}"
    wheel, batches = app.wheel, itertools.count(1)
    begin = wheel.begin_schedule

    def failing(items: Any) -> Any:
        def fail() -> None:
            raise StoreUnavailable("gone")

        if next(batches) == 1:
            return begin(items)
        return fail() if when == "sending" else fail

    monkeypatch.setattr(wheel, "begin_schedule", failing)
    try:
        calls = ((number,) for number in range(1200))
        if on_outage == "refuse":
            with pytest.raises(HoldRefused, match="500 tasks were sent"):
                apply_many(app.tasks["bulk.add"], calls, countdown=600)
        else:
            assert len(apply_many(app.tasks["bulk.add"], calls, countdown=600)) == 1200
        with app.connection_for_read() as connection, connection.channel() as channel:
            sent = channel.client.llen(queue)
        assert (HeldTasks(app).counts().total("due"), sent) == (500, 700 if on_outage == "stock" else 0)
    finally:
        wheel.close()
        app.close()


@pytest.mark.parametrize("on_outage", ["stock", "refuse"])
def test_while_the_store_is_away_the_policy_of_the_app_holds(on_outage: str, redis_url: str) -> None:
    """The setting `on_outage` decides whether the tasks are sent to the broker with their ETA, or all are refused."""
    with temporary_server() as store:
        app = Celery("bulk", broker=broker_of(redis_url), set_as_current=False)
        install(app, store.url, namespace="away", on_outage=on_outage, timeout="1s")
        app.conf.task_default_queue = f"away-{on_outage}"

        @app.task(name="bulk.add", shared=False)
        def add(x: Any) -> None: ...

        apply_many(add, [(0,)], countdown=600)
        store.stop()
        if on_outage == "refuse":
            with pytest.raises(HoldRefused, match="0 tasks were sent"):
                apply_many(add, [(1,), (2,)], countdown=600)
            with pytest.raises(HoldRefused):
                add.apply_async((3,), countdown=600)
            retry = add.apply_async((3,), countdown=600, retries=1)  # Celery would give the task up
            with app.connection_for_read() as connection:
                message = connection.SimpleQueue(f"away-{on_outage}").get(timeout=10)
            assert (message.headers["id"], message.headers["retries"]) == (retry.id, 1)
        else:
            ids = apply_many(add, [(1,), (2,)], countdown=600)
            with app.connection_for_read() as connection:
                messages = [connection.SimpleQueue(f"away-{on_outage}").get(timeout=10) for _ in ids]
            assert sorted(message.headers["id"] for message in messages) == sorted(ids)
            assert all(message.headers["eta"] for message in messages)
        app.wheel.close()
        app.close()
    assert issubclass(HoldRefused, OperationalError)

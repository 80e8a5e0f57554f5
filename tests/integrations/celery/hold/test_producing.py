"""Which tasks a producer holds, and which it sends to the broker as stock Celery does. Also invalid
input.

A task is held if it waits in the store until it is due.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from copy import copy
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery, signals
from kombu import Exchange, Queue
from kombu.common import Broadcast
from kombu.exceptions import OperationalError
from wheel_sched_celery import HoldRefused, apply_many, install
from wheel_sched_celery.release.shared_server import SharedServer

from wheel_sched.errors import InDoubt, StoreError, StoreFull, StoreUnavailable
from wheel_sched.store.core.items import Item

if TYPE_CHECKING:
    from conftest import InstalledApp

FAR = datetime(2100, 6, 1, 12, tzinfo=UTC)


def test_what_is_due_beyond_the_horizon_is_held_and_the_rest_is_sent(installed: InstalledApp) -> None:
    """Tasks that are due at once, within two seconds or in the past are sent as stock Celery does."""
    installed.send()
    installed.send(eta=datetime(2001, 1, 1, tzinfo=UTC))
    for countdown in (1.5, 0.5, -5):
        installed.send(countdown=countdown)
    assert (len(installed.held()), len(installed.published())) == (0, 5)
    installed.send(countdown=2.5)
    installed.send(eta=FAR)
    assert (len(installed.held()), len(installed.published())) == (2, 0)


@pytest.mark.parametrize(
    ("eta", "zone", "due"),
    [
        (FAR, "UTC", FAR),
        (FAR.astimezone(timezone(timedelta(hours=5, minutes=45))), "UTC", FAR),
        (datetime(2100, 6, 1, 12), "Europe/Berlin", FAR),  # naive is UTC to a worker, whatever its zone
        ("2100-06-01T12:00:00+00:00", "UTC", FAR),
        (datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC), "UTC", datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)),
    ],
    ids=["utc", "odd zone", "naive", "text", "year 9999"],
)
def test_an_eta_means_what_a_worker_makes_of_it(
    make_installed: Callable[..., InstalledApp], eta: Any, zone: str, due: datetime
) -> None:
    """The store gets the instant that a worker would read from the ETA. The header does not change."""
    installed = make_installed(conf={"timezone": zone})
    installed.send(eta=eta)
    (task,) = installed.held()
    assert task.eta_ms == int(due.timestamp() * 1000)
    assert task.headers["eta"] == (eta if isinstance(eta, str) else eta.isoformat())


def test_an_eta_that_nobody_can_read_goes_the_stock_way(installed: InstalledApp) -> None:
    """A task whose ETA cannot be read is sent as stock Celery does, and the worker that gets it reports the error."""
    installed.send(eta="the day after tomorrow")
    assert (len(installed.held()), len(installed.published())) == (0, 1)


def test_protocol_1_is_held_too(make_installed: Callable[..., InstalledApp]) -> None:
    """A task of protocol 1, whose ETA is in the body of the message, is held too."""
    installed = make_installed(conf={"task_protocol": 1})
    result = installed.send("old", 1, countdown=60)
    (task,) = installed.held()
    assert (task.task_id, task.name, task.headers) == (result.id, "old", {})


def test_a_task_can_be_found_by_its_id_and_is_counted_under_its_queue(installed: InstalledApp) -> None:
    """The store finds the task by its id and counts it under its queue."""
    result = installed.send(countdown=60, queue="slow")
    (found,) = installed.store.get(installed.store.find(f"task:{result.id}"), route=result.id)
    assert found is not None
    assert (found.topic, found.id.split(":")[:2]) == ("slow", [result.id, "0"])


def test_one_id_and_eta_with_other_arguments_or_for_another_queue_are_tasks_of_their_own(
    installed: InstalledApp,
) -> None:
    """Several messages have one id and ETA, but other arguments or queues. All are held, because stock Celery runs all
    of them. A message that is sent again after a lost reply is held only once."""
    for number, queue in [(1, "a"), (2, "a"), (1, "b"), (1, "a"), (2, "a")]:
        installed.send("note", number, task_id="chosen", eta=FAR, queue=queue)
    held = sorted((task.queue, json.loads(task.body)[0][0]) for task in installed.held())
    assert held == [("a", 1), ("a", 2), ("b", 1)]
    assert len(installed.store.find("task:chosen")) == 3


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"headers": {"tenant": "a"}}, {"headers": {"tenant": "b"}}),
        ({"headers": {"tenant": "a"}}, {}),
        ({"time_limit": 5}, {"time_limit": 50}),
        ({"ignore_result": True}, {"ignore_result": False}),
        ({"shadow": "one"}, {"shadow": "other"}),
        ({"reply_to": "one"}, {"reply_to": "other"}),
        ({"stamped_headers": ["x"], "stamps": {"x": "1"}, "x": "1"}, {"stamped_headers": ["x"], "x": "2"}),
    ],
    ids=["header", "no header", "limit", "result", "shadow", "reply to", "stamp"],
)
def test_one_id_and_eta_with_other_headers_are_tasks_of_their_own(
    installed: InstalledApp, one: dict[str, Any], other: dict[str, Any]
) -> None:
    """Two messages have one id and ETA, but other headers, for example of two tenants. Both are held, because stock
    Celery runs both. A message that is sent again is held only once."""
    for options in (one, other, one, other):
        installed.send("note", 1, task_id="chosen", eta=FAR, **options)
    assert len(installed.held()) == 2


@pytest.mark.parametrize(
    "options",
    [
        {"origin": "another process"},
        {"reply_to": "4a5e3f0e-98a1-3d3c-9c33-5d1f7ea6b1d5"},
        {"root_id": "somebody", "parent_id": "somebody else"},
        {"headers": {"traceparent": "00-1-2-01", "sentry-trace": "1", "headers": {"sentry-trace": "1"}}},
        {"headers": {"x-death": [{"count": 1}], "x-delivery-count": 3}},
        {"argsrepr": "(...)"},
    ],
    ids=["origin", "thread", "parents", "tracing", "broker", "text of arguments"],
)
def test_what_another_attempt_to_send_changes_makes_no_other_task(
    installed: InstalledApp, options: dict[str, Any]
) -> None:
    """A call that is repeated after a lost reply may have other values of these options. The task is still held only
    once."""
    installed.send("note", 1, task_id="chosen", eta=FAR)
    installed.send("note", 1, task_id="chosen", eta=FAR, **options)
    assert len(installed.held()) == 1


def test_the_order_of_stamps_makes_no_other_task(installed: InstalledApp) -> None:
    """Celery makes sets of stamps, so a message that is sent again may have them in another order. It is held only
    once."""
    for names, values in ((["x", "y"], ["1", "2"]), (["y", "x"], ["2", "1"])):
        installed.send("note", 1, task_id="chosen", eta=FAR, stamped_headers=names, x=values, y="3")
    assert len(installed.held()) == 1


def test_signals_are_sent_as_ever_and_what_they_change_is_held(installed: InstalledApp) -> None:
    """What `before_task_publish` changes is stored with the task. After that, `after_task_publish` is sent."""
    seen: list[int] = []

    def before(headers: dict[str, Any], **_: Any) -> None:
        headers["tenant"] = "t1"

    def after(**_: Any) -> None:
        seen.append(len(installed.held()))

    signals.before_task_publish.connect(before)
    signals.after_task_publish.connect(after)
    try:
        installed.send(countdown=60)
    finally:
        signals.before_task_publish.disconnect(before)
        signals.after_task_publish.disconnect(after)
    assert seen == [1]
    assert installed.held()[0].headers["tenant"] == "t1"


def test_a_message_over_the_limit_goes_the_stock_way(installed: InstalledApp, caplog: pytest.LogCaptureFixture) -> None:
    """A task that is too large for the store is sent as stock Celery does, and a warning names it."""
    result = installed.send("large", "x" * (17 * 1024 * 1024), countdown=60)
    assert (installed.held(), len(installed.published())) == ([], 1)
    assert result.id in caplog.text


def test_broadcasts_are_never_held(make_installed: Callable[..., InstalledApp]) -> None:
    """A broadcast is sent at once. If it were held, it would have to become a message for each worker when it is
    due."""
    installed = make_installed(conf={"task_queues": [Queue("celery"), Broadcast("all")]})
    installed.send(exchange="all", exchange_type="fanout", routing_key="celery", countdown=60)
    installed.send(
        exchange="x", exchange_type="fanout", routing_key="k", declare=[Exchange("x", "fanout")], countdown=60
    )
    assert installed.held() == []


def test_native_delayed_delivery_is_undone(
    installed: InstalledApp, make_installed: Callable[..., InstalledApp]
) -> None:
    """For quorum queues, Celery sends to a delay exchange and writes the delay into the routing key. A held task has
    the original exchange and routing key."""
    installed = make_installed(conf={"task_queues": [Queue("q", Exchange("e", type="topic"), routing_key="a.b")]})
    key = ".".join("0" * 25 + "111") + ".a.b"
    installed.send(exchange=Exchange("celery_delayed_27", type="topic"), routing_key=key, countdown=60)
    (task,) = installed.held()
    assert (task.exchange, task.routing_key, task.queue) == ("e", "a.b", "q")


def _raising(error: Exception) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


_away = _raising(StoreUnavailable("gone"))


def test_with_the_store_away_a_task_is_sent_the_stock_way(
    installed: InstalledApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tasks are sent to the broker while the store is away. The producer asks the store only for the first one, and
    then not again for a while."""
    asked: list[int] = []
    monkeypatch.setattr(installed.wheel, "_begin", lambda _: asked.append(1) or _away())
    installed.send(countdown=60)
    installed.send(countdown=60)
    assert (len(installed.published()), len(asked)) == (2, 1)


@pytest.mark.parametrize(
    ("error", "in_doubt"),
    [
        (StoreUnavailable("no answer from the server: what was sent may have been executed", in_doubt=True), True),
        (InDoubt("written, but not yet on disk"), True),
        (StoreUnavailable("no connection to the server: nothing was sent"), False),
        (StoreFull("the server is at its memory limit: nothing was written"), False),
    ],
    ids=["unanswered", "unconfirmed", "no connection", "refused"],
)
def test_an_app_may_refuse_instead(
    make_installed: Callable[..., InstalledApp], monkeypatch: pytest.MonkeyPatch, error: StoreError, in_doubt: bool
) -> None:
    """With `on_outage="refuse"` the broker gets nothing. The error says whether the store may hold the task
    nevertheless."""
    installed = make_installed(on_outage="refuse")
    monkeypatch.setattr(installed.wheel, "_begin", _raising(error))
    with pytest.raises(HoldRefused, match=r": in doubt, " if in_doubt else r": not sent: ") as refused:
        installed.send(countdown=60)
    again = copy(refused.value)  # copied as by pickle, with which Celery passes errors of tasks on
    assert (refused.value.in_doubt, again.in_doubt, str(again)) == (in_doubt, in_doubt, str(refused.value))
    assert str(error) in str(again)
    assert installed.published() == []
    with pytest.raises(HoldRefused, match=r": not sent: .* away a moment ago"):
        installed.send(countdown=60)


def write(_number: int) -> None: ...


@pytest.mark.parametrize("on_outage", ["stock", "refuse"])
def test_what_the_store_holds_unconfirmed_is_taken_out_before_it_is_sent(
    make_installed: Callable[..., InstalledApp], monkeypatch: pytest.MonkeyPatch, on_outage: str
) -> None:
    """The store has the item, but no replica confirms it. With `on_outage="stock"` the item is removed and the message
    sent, so that the task runs once. With "refuse" the item stays, and the error says so."""
    installed = make_installed(on_outage=on_outage)
    begin = installed.wheel._begin

    many: Any = installed.app.task(name="many", shared=False)(write)

    def unconfirmed(items: list[Item]) -> Callable[[], None]:
        def finish() -> None:
            begin(items)()
            raise InDoubt("written, but only 0 of 1 replicas confirmed")

        return finish

    monkeypatch.setattr(installed.wheel, "_begin", unconfirmed)
    with (
        contextlib.nullcontext() if on_outage == "stock" else pytest.raises(HoldRefused, match=r"in doubt, .* holds it")
    ):
        installed.send(countdown=60)
    installed.wheel._away_until_s = 0.0
    with (
        contextlib.nullcontext() if on_outage == "stock" else pytest.raises(HoldRefused, match=r"in doubt, .* holds it")
    ):
        apply_many(many, [(1,), (2,)], countdown=60)
    assert (len(installed.held()), len(installed.published())) == ((0, 3) if on_outage == "stock" else (3, 0))


def test_what_has_left_the_store_unconfirmed_is_not_sent_as_well(
    make_installed: Callable[..., InstalledApp], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dispatcher has sent the task while the producer waited for a confirmation. So the producer does not send it."""
    installed = make_installed(on_outage="stock")
    begin = installed.wheel._begin

    def unconfirmed(items: list[Item]) -> Callable[[], None]:
        def finish() -> None:
            begin(items)()
            installed.store.cancel([item.id for item in items])  # as if it had been sent
            raise InDoubt("written, but only 0 of 1 replicas confirmed")

        return finish

    monkeypatch.setattr(installed.wheel, "_begin", unconfirmed)
    installed.send(countdown=60)
    assert (installed.held(), installed.published()) == ([], [])


def test_a_first_try_without_an_answer_stays_in_doubt(installed: InstalledApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call stays in doubt whatever the second attempt reports, because the server may have executed the first."""
    begun = SimpleNamespace(answers=_raising(StoreUnavailable("no answer: it may have been executed", in_doubt=True)))
    monkeypatch.setattr(installed.store, "begin", lambda *_: begun)
    monkeypatch.setattr(installed.store, "schedule", _raising(StoreUnavailable("no connection: nothing was sent")))
    with pytest.raises(StoreUnavailable, match="may have been executed"):
        installed.wheel.schedule([Item("an-id", 1, b"")])


def test_holding_needs_no_broker(make_installed: Callable[..., InstalledApp]) -> None:
    """A task is held although the broker is away."""
    installed = make_installed(conf={"broker_url": "redis://127.0.0.1:1/0"})
    installed.app.send_task("note", countdown=60, ignore_result=True)
    assert [task.name for task in installed.held()] == ["note"]


def test_a_task_sent_event_that_cannot_be_sent_is_kept_as_in_stock(installed: InstalledApp) -> None:
    """Celery's event dispatcher keeps the event in its buffer. The task is held, and the producer gets no error."""

    class Broken:
        """A producer whose broker is away."""

        exchange, routing_key, serializer, compression = Exchange(""), "celery", "json", None

        def publish(self, *_: Any, **__: Any) -> None:
            raise OperationalError("gone")

    amqp = installed.app.amqp
    message = amqp.create_task_message("an-id", "note", (), countdown=60, create_sent_event=True)
    amqp.send_task_message(Broken(), "note", message)
    assert [task.task_id for task in installed.held()] == ["an-id"]
    ((event, routing_key, *_),) = amqp._event_dispatcher._outbound_buffer
    assert (event["type"], event["uuid"], routing_key) == ("task-sent", "an-id", "task.sent")


def test_a_store_that_is_away_is_asked_once_for_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that sends its first task also asks whether broker and store are one server. Still it asks the store
    only once, so a store that hangs costs one timeout."""
    asked: list[Any] = []

    def hangs(*_: Any, **options: Any) -> Any:
        asked.append(options["repeat_timeouts"])
        raise StoreUnavailable("gone")

    monkeypatch.setattr("wheel_sched_celery.wheel.open_store", hangs)
    app = Celery("first", broker="redis://127.0.0.1:1/0", set_as_current=False)
    install(app, "redis://nowhere.invalid", on_outage="refuse")
    with pytest.raises(HoldRefused):
        app.send_task("note", countdown=60)
    assert asked == [False]


def test_a_broker_that_hangs_is_asked_by_one_sender_and_then_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only one sender at a time asks the broker whether it is also the store's server. There is a pause after each
    attempt. It doubles each time, up to a minute."""
    app = Celery("hanging", broker="redis://127.0.0.1:1/0", set_as_current=False)
    now_s, asked = [1000.0], list[float]()

    def hangs() -> None:
        asked.append(now_s[0] - 1000)
        assert server.queue is None  # another sender asks meanwhile
        now_s[0] += 5
        raise StoreUnavailable("it hangs")

    server = SharedServer(app, hangs, timeout_s=0.1)
    monkeypatch.setattr("wheel_sched_celery.release.shared_server.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    while now_s[0] < 1300:
        assert server.queue is None
        now_s[0] += 1
    assert asked == [0, 7, 16, 29, 50, 87, 152, 217, 282]
    app.close()

"""Which messages a takeover stores and which it leaves to stock Celery, by which clock and for which queue.

In a takeover, a worker gets an ETA message from the broker, stores its task as an item, and acknowledges the message. A
copy is a further message of the same task, such as one that the broker delivers again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from celery.worker import state as worker_state
from kombu import Exchange, Queue
from kombu.common import Broadcast, QoS
from wheel_sched_celery import HeldTasks
from wheel_sched_celery.message.headers import iso_of
from wheel_sched_celery.store_thread import StoreThread
from wheel_sched_celery.takeover.source_queue import own_queue
from wheel_sched_celery.takeover.store_calls import DRIFT
from wheel_sched_celery.takeover.takeover import StoreClock, Takeover

from wheel_sched.errors import StoreUnavailable
from wheel_sched.store.core.settle import Dead, Done, Held

if TYPE_CHECKING:
    from conftest import InstalledApp

HOUR_US = 3_600_000_000
FAR = datetime(2100, 6, 1, 12, tzinfo=UTC)
QUEUES = [
    Queue("celery", Exchange("celery"), routing_key="celery"),
    Queue("left", Exchange("wide", type="topic"), routing_key="a.*"),
    Queue("deep", Exchange("wide", type="topic"), routing_key="b.#"),
    Broadcast("all"),
]


class Consumer:
    """Stands in for Celery's and kombu's consumer, with the parts that a takeover uses."""

    def __init__(self, queues: list[Any] = QUEUES) -> None:
        self.hub: Any = SimpleNamespace(call_soon=self._call_soon, call_later=self._call_later)
        self.soon: list[Callable[[], None]] = []
        self.later: list[Callable[[], None]] = []
        self.connection_errors = (OSError,)
        self.qos = QoS(lambda **_: None, 4)
        self.event_dispatcher = None
        self.task_consumer = self
        self.queues = queues
        self._active_tags = {queue.name: f"tag of {queue.name}" for queue in queues}

    def _call_soon(self, call: Callable[..., None], *arguments: Any) -> None:
        self.soon.append(partial(call, *arguments))

    def _call_later(self, _seconds: float, call: Callable[..., None], *arguments: Any) -> None:
        self.later.append(partial(call, *arguments))

    def consuming_from(self, name: str) -> bool:
        return name in self._active_tags

    def turn(self) -> None:
        """Run the calls that are planned for the next turns of the event loop."""
        while self.soon:
            self.soon.pop(0)()


class Inline(StoreThread):
    """Runs every job at once. While `hangs` is set, it keeps the jobs until `go_on`."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs = False
        self.jobs: list[Callable[[], Any]] = []

    def submit(self, job: Callable[[], Any]) -> None:
        self.jobs.append(job)
        if not self.hangs:
            self.go_on()

    def go_on(self) -> None:
        while self.jobs:
            self.jobs.pop(0)()


class Scene:
    """One worker that takes over messages, and what it acknowledges and leaves to stock Celery.

    `clock_ahead_s` moves the worker's estimate of the store's time forward.
    """

    def __init__(self, installed: InstalledApp, wall_us: Callable[[], int] = lambda: time.time_ns() // 1000) -> None:
        self.installed = installed
        self.consumer = Consumer()
        installed.wheel.thread = self.thread = Inline()
        self.clock_ahead_s = 0
        clock = StoreClock(installed.wheel)
        real_us = clock.estimate_us
        clock.estimate_us = lambda: (real_us() or 0) + self.clock_ahead_s * 1_000_000  # type: ignore[method-assign]
        self.takeover = Takeover(installed.wheel, self.consumer, clock, wall_us)
        self.stock: list[dict[str, Any]] = []
        self.acked: list[str] = []
        self.strategy = self.takeover.wrap(self._stock)

    def _stock(self, message: Any, body: Any, ack: Any, reject: Any, callbacks: Any, to_timestamp: Any = None) -> None:
        identity = message.headers if "id" in message.headers else body
        self.stock.append({"id": identity["id"], "to_timestamp": to_timestamp})

    def receive(
        self, task_id: str, in_s: float, errors: Any = None, *, again: bool = False, due: str = "", **headers: Any
    ) -> None:
        eta = due or iso_of(self.installed.store.now_ms() + int(in_s * 1000))
        message = SimpleNamespace(
            headers={"task": "note", "id": task_id, "eta": eta, "retries": 0, **headers},
            properties={"correlation_id": task_id, "delivery_tag": 1, "priority": 3},
            delivery_info={"exchange": "", "routing_key": "celery", "redelivered": again},
            body=b"[]",
            content_type="application/json",
            content_encoding="utf-8",
            errors=errors,
        )
        self.strategy(message, None, lambda *_: self.acked.append(task_id), None, [])

    def pass_on(self, message: Any) -> None:
        """Give the worker a message of the broker, and end the turn of its event loop."""
        task_id = message.headers["id"] if "id" in message.headers else message.decode()["id"]
        self.strategy(message, message.decode(), lambda *_: self.acked.append(task_id), None, [])
        self.consumer.turn()

    @property
    def left_to_stock(self) -> list[str]:
        return [each["id"] for each in self.stock]


def test_a_turns_messages_are_stored_in_one_call_and_then_acknowledged(
    installed: InstalledApp, monkeypatch: Any
) -> None:
    """One call stores all messages of a turn of the event loop. They are acknowledged only then, so that the broker
    keeps them until they are stored."""
    scene = Scene(installed)
    calls: list[int] = []
    schedule = installed.store.schedule
    monkeypatch.setattr(installed.store, "schedule", lambda items, **_: calls.append(len(items)) or schedule(items))
    for i in range(5):
        scene.receive(f"id-{i}", 60)
    assert (scene.acked, len(scene.consumer.soon)) == ([], 1)
    scene.consumer.turn()
    assert (calls, len(scene.acked), scene.stock) == ([5], 5, [])
    assert {(task.queue, task.priority) for task in installed.held()} == {("celery", 3)}
    scene.receive("id-0", 60)
    scene.consumer.turn()
    assert len(scene.acked) == 6


@pytest.mark.parametrize("offset_us", [-HOUR_US, 0, HOUR_US], ids=["behind", "right", "ahead"])
def test_a_workers_wrong_clock_moves_nothing(installed: InstalledApp, offset_us: int) -> None:
    """A message that is due soon by the store's clock goes to stock Celery, with its time by the worker's clock."""
    scene = Scene(installed, lambda: time.time_ns() // 1000 + offset_us)
    scene.receive("due", -0.01)
    scene.receive("soon", 1.5)
    scene.receive("later", 3)
    scene.consumer.turn()
    assert (scene.left_to_stock, scene.acked) == (["due", "soon"], ["later"])
    instant = scene.stock[1]["to_timestamp"](10_000.0)
    assert instant == pytest.approx(10_000.0 + offset_us / 1e6, abs=5)


def test_the_stores_clock_never_goes_back_for_a_worker(
    installed: InstalledApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The estimate never decreases. If it did, a worker could take over messages that the dispatcher has just sent."""
    now_us = [1_000_000]
    clock = StoreClock(installed.wheel, lambda: now_us[0] * 1000)
    times = iter([5_000_000, 1_000])
    monkeypatch.setattr(installed.wheel, "store_now_us", lambda: next(times) * 1000)
    first = clock.now_us()
    now_us[0] += 120_000_000
    assert first is not None
    assert clock.now_us() == first


def test_a_clock_that_runs_fast_makes_no_task_early(installed: InstalledApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's clock runs 0.1 ms a second faster than the store's. Neither the estimate nor a wait is early."""
    local_s = [1_000.0]
    monkeypatch.setattr(installed.wheel, "store_now_us", lambda: 5_000_000_000)
    clock = StoreClock(installed.wheel, lambda: round(local_s[0] * 1e9))
    assert clock.now_us() == 5_000_000_000
    local_s[0] += 4.0 * (1 + DRIFT)  # four seconds of the store's time
    assert 5_003_999_000 <= (clock.fresh_us() or 0) <= 5_004_000_000

    scene = Scene(installed)
    monkeypatch.setattr(time, "monotonic", lambda: 1_000.0)
    by_the_store = scene.takeover._by_the_store(scene.takeover._wall_us())
    assert by_the_store(1_002.0) >= 1_000.0 + 2.0 * (1 + DRIFT) - 1e-5
    assert by_the_store(999.0) == pytest.approx(999.0, abs=1e-4)


@pytest.mark.parametrize(
    "headers",
    [{"eta": None}, {"eta": "rubbish"}, {"eta": 5}, {"expires": iso_of(1_000)}, {"id": None}],
    ids=["no eta", "no date", "a number", "expired", "no id"],
)
def test_what_is_odd_stays_with_stock(installed: InstalledApp, headers: dict[str, Any]) -> None:
    """A message with odd headers is left to stock Celery, which reports the error or accepts the message."""
    scene = Scene(installed)
    scene.receive("odd", 60, **headers)
    scene.consumer.turn()
    assert (len(scene.stock), installed.held()) == (1, [])


def test_revoked_and_undecodable_ones_stay_with_stock(installed: InstalledApp) -> None:
    """Stock Celery drops revoked messages and reports undecodable ones."""
    scene = Scene(installed)
    worker_state.revoked.add("revoked")
    worker_state.revoked_stamps["tenant"] = "gone"
    try:
        scene.receive("revoked", 60)
        scene.receive("stamped", 60, stamped_headers=["tenant"], stamps={"tenant": ["gone"]})
        scene.receive("other", 60, stamped_headers=["tenant"], stamps={"tenant": "here"})
        scene.receive("undecodable", 60, errors=[ValueError()])
        scene.consumer.turn()
    finally:
        worker_state.revoked.discard("revoked")
        del worker_state.revoked_stamps["tenant"]
    assert scene.left_to_stock == ["revoked", "stamped", "undecodable"]


def test_messages_that_wait_for_the_store_do_not_count_as_prefetched(installed: InstalledApp) -> None:
    """If messages that wait for the store counted, a worker whose store hangs would hold only them and fetch no due
    task."""
    scene = Scene(installed)
    for task_id in "abc":
        scene.receive(task_id, 60)
    assert scene.consumer.qos.value == 7
    scene.consumer.turn()
    assert (scene.acked, scene.consumer.qos.value) == (["a", "b", "c"], 4)


def test_with_the_store_away_they_stay_in_the_worker(installed: InstalledApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker keeps the tasks in its timer, unacknowledged, as stock Celery does."""
    scene = Scene(installed)

    def away(_: Any, **_more: Any) -> Any:
        raise StoreUnavailable("gone")

    scene.receive("early", 60)
    monkeypatch.setattr(installed.store, "schedule", away)
    scene.consumer.turn()
    assert (scene.left_to_stock, scene.acked) == (["early"], [])


def test_a_copy_of_what_waits_is_dropped_however_late_the_broker_redelivers_it(installed: InstalledApp) -> None:
    """The worker acknowledges the copy. A copy that is due much later gets the held task's item id, so it is not stored
    again. If a copy is due soon, the worker reads the item."""
    first, second = Scene(installed), Scene(installed)
    eta = iso_of(installed.store.now_ms() + 60_000)
    first.receive("slow", 0, due=eta)
    first.consumer.turn()
    second.receive("slow", 0, due=eta, again=True)
    second.consumer.turn()
    assert (len(installed.held()), second.acked) == (1, ["slow"])
    second.clock_ahead_s = 59
    second.receive("slow", 0, due=eta, again=True)
    second.consumer.turn()
    assert (second.acked, second.stock) == (["slow", "slow"], [])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression": "zlib", "priority": 5, "expires": 7200},
        {"exchange": "celery", "routing_key": "celery"},
        {
            "headers": {"tenant": "a", "at": FAR},
            "time_limit": 5,
            "reply_to": "q",
            "stamped_headers": ["x"],
            "x": ("1",),
        },
        {"task_protocol": 1},
    ],
    ids=["plain", "compressed", "exchange", "headers", "protocol 1"],
)
def test_a_task_held_in_doubt_and_sent_the_stock_way_becomes_one_again(
    make_installed: Callable[..., InstalledApp], monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """The store did not answer, so the producer sent the task to the broker. A worker that takes it over makes the same
    item. Other arguments make another item.
    """
    installed = make_installed(conf={"task_protocol": options.pop("task_protocol", 2), "task_queues": QUEUES})
    begin = installed.wheel._begin

    def lost(items: Any) -> Any:
        begin(items)()
        raise StoreUnavailable("no answer")

    monkeypatch.setattr(installed.wheel, "_begin", lost)
    with installed.app.connection_for_write() as connection:
        QUEUES[0](connection.default_channel).declare()
    installed.send("note", 1, task_id="doubt", eta=FAR, **options)
    monkeypatch.setattr(installed.wheel, "_begin", begin)
    installed.wheel._away_until_s = 0.0
    (message,) = installed.published()
    scene = Scene(installed)
    body = None if "task" in message.headers else message.payload
    scene.strategy(message, body, lambda *_: scene.acked.append("doubt"), None, [])
    scene.consumer.turn()
    assert (len(installed.held()), scene.acked) == (1, ["doubt"])
    installed.send("note", 2, task_id="doubt", eta=FAR, **options)
    assert len(installed.held()) == 2


def test_a_copy_of_what_has_left_the_store_runs(installed: InstalledApp) -> None:
    """The store has no item for the copy. It may have sent this very message to a worker that has died since, so the
    worker must run it."""
    scene = Scene(installed)
    scene.receive("sent", 1, again=True)
    scene.consumer.turn()
    assert (scene.left_to_stock, scene.acked) == (["sent"], [])


def test_a_copy_runs_when_the_store_cannot_be_asked(installed: InstalledApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker runs the copy, because a task that runs twice is better than a task that is lost."""
    scene = Scene(installed)
    scene.receive("far", 60)
    scene.consumer.turn()

    def away(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(installed.store, "get", away)
    scene.receive("near", 1, again=True)
    scene.consumer.turn()
    assert scene.left_to_stock == ["near"]


@pytest.mark.parametrize("protocol", [1, 2])
@pytest.mark.parametrize("again", [False, True], ids=["first", "redelivered"])
def test_what_the_store_has_sent_is_never_taken_over_again(
    make_installed: Callable[..., InstalledApp], protocol: int, again: bool
) -> None:
    """The message arrives before it is due, while its item is in flight. The worker does not acknowledge it, because
    that would lose the task."""
    installed = make_installed(conf={"task_protocol": protocol})
    task_id = installed.send(countdown=60).id
    claim = installed.claim()
    (message,) = installed.dispatch(claim)
    message.delivery_info = {**message.delivery_info, "redelivered": again}
    scene = Scene(installed)
    scene.pass_on(message)
    installed.store.settle(claim, [Done(item.id) for item in claim.items])
    assert (scene.acked, scene.left_to_stock, installed.held()) == ([], [task_id], [])
    scene.pass_on(message)  # also when the item is gone
    assert (scene.acked, scene.left_to_stock, installed.held()) == ([], [task_id] * 2, [])


def test_a_rescheduled_task_is_not_taken_over_either(installed: InstalledApp) -> None:
    """The item keeps the id from its first ETA, and the message has the new ETA. The worker still knows the message."""
    installed.send(countdown=60)
    tasks = HeldTasks(installed.app)
    tasks.reschedule(tasks.select(), installed.store.now_ms() + 600_000)
    (message,) = installed.dispatch(installed.claim())
    scene = Scene(installed)
    scene.pass_on(message)
    assert (scene.acked, len(scene.stock), installed.held()) == ([], 1, [])


@pytest.mark.parametrize("changed", [{"retries": 1}, {"eta": "2100-01-01T00:00:00+00:00"}, {"id": "another"}], ids=str)
def test_a_mark_that_was_copied_into_another_message_means_nothing(
    installed: InstalledApp, changed: dict[str, Any]
) -> None:
    """Celery copies headers, and so our mark, into retries. A retry from a worker with stock Celery is taken over all
    the same."""
    installed.send(countdown=60)
    (message,) = installed.dispatch(installed.claim())
    message.headers.update(changed)
    scene = Scene(installed)
    scene.pass_on(message)
    assert (len(scene.acked), scene.stock) == (1, [])


@pytest.mark.parametrize("again", [False, True], ids=["far", "near and redelivered"])
@pytest.mark.parametrize("state", ["leased", "dead", "held"])
def test_only_what_waits_in_the_store_is_acknowledged(installed: InstalledApp, state: str, again: bool) -> None:
    """If a copy's item is in flight or dead, the worker must keep the copy: nobody else may run the task."""
    eta = iso_of(installed.store.now_ms() + 60_000)
    scene = Scene(installed)
    scene.receive("copy", 0, due=eta)
    scene.consumer.turn()
    claim = installed.claim()
    if state != "leased":
        (item,) = claim.items
        installed.store.settle(claim, [Dead(item.id, "unroutable") if state == "dead" else Held(item.id, "paused")])
    if again:
        scene.clock_ahead_s = 59
    scene.receive("copy", 0, due=eta, again=again)
    scene.consumer.turn()
    assert scene.acked == (["copy"] * 2 if state == "held" else ["copy"])
    assert scene.left_to_stock == ([] if state == "held" else ["copy"])


def test_the_loop_never_waits_for_a_store_that_hangs(installed: InstalledApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the store hangs, the message stays unacknowledged. When it has waited long enough, it goes to the worker's
    timer, once."""
    scene = Scene(installed)
    scene.thread.hangs = True
    scene.receive("far", 60)
    scene.consumer.turn()
    assert (scene.acked, scene.stock, len(scene.consumer.later)) == ([], [], 1)
    scene.consumer.later.pop()()
    assert (scene.acked, scene.stock, len(scene.consumer.later)) == ([], [], 1)
    monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + 5.1)
    scene.consumer.later.pop()()
    assert (scene.acked, scene.left_to_stock, scene.consumer.later) == ([], ["far"], [])
    scene.thread.go_on()  # in the end it answers
    scene.consumer.turn()
    assert (scene.acked, scene.left_to_stock, installed.held()) == ([], ["far"], [])


class Slow:
    """A store that executes each call and answers too late."""

    def __init__(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        self._scene, self._monkeypatch = scene, monkeypatch
        self._schedule = scene.installed.store.schedule

    def __enter__(self) -> None:
        self._monkeypatch.setattr(self._scene.installed.store, "schedule", self._unheard)

    def __exit__(self, *_: object) -> None:
        self._monkeypatch.setattr(self._scene.installed.store, "schedule", self._schedule)
        self._scene.installed.wheel._away_until_s = 0.0

    def _unheard(self, items: Any, **more: Any) -> Any:
        self._schedule(items, **more)
        raise StoreUnavailable("no answer", in_doubt=True)


def let_it_look(scene: Scene) -> None:
    """Run the calls that the consumer has planned for a later turn of the event loop."""
    later, scene.consumer.later = scene.consumer.later, []
    for call in later:
        call()


def test_an_item_stored_without_an_answer_is_withdrawn_when_the_store_is_back(
    installed: InstalledApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the store's answer is late, the messages go to the worker's timer. With the items, each task would run
    twice, so the worker removes these items later. An item that was confirmed stays."""
    scene = Scene(installed)
    scene.receive("heard", 60)
    scene.consumer.turn()
    with Slow(scene, monkeypatch):
        for i in range(3):
            scene.receive(f"unheard {i}", 60)
        scene.consumer.turn()
    assert (len(scene.stock), len(installed.held())) == (3, 4)
    let_it_look(scene)
    assert [task.task_id for task in installed.held()] == ["heard"]
    assert (scene.acked, scene.consumer.later) == (["heard"], [])


def test_an_answer_that_comes_after_the_message_was_given_up_is_undone(
    installed: InstalledApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call succeeds after its message has gone to the worker's timer. The item is withdrawn."""
    scene = Scene(installed)
    schedule = installed.store.schedule
    now_s = time.monotonic()

    def slow(items: Any, **more: Any) -> Any:
        monkeypatch.setattr(time, "monotonic", lambda: now_s + 5.1)
        let_it_look(scene)  # the loop goes on meanwhile
        return schedule(items, **more)

    scene.thread.hangs = True
    scene.receive("far", 60)
    scene.consumer.turn()
    scene.takeover._clock.now_us()  # so that the store seems to have answered just now
    monkeypatch.setattr(installed.store, "schedule", slow)
    scene.thread.go_on()
    scene.consumer.turn()
    assert (scene.left_to_stock, scene.acked, len(installed.held())) == (["far"], [], 1)
    scene.thread.hangs = False
    let_it_look(scene)
    assert (installed.held(), scene.acked) == ([], [])


def test_what_another_worker_has_acknowledged_a_copy_of_is_not_withdrawn(
    installed: InstalledApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other worker stored and acknowledged the copy, so only the store's item is sure to run the task, and it
    stays."""
    first, second = Scene(installed), Scene(installed)
    eta = iso_of(installed.store.now_ms() + 60_000)
    with Slow(first, monkeypatch):
        first.receive("moved", 0, due=eta)
        first.consumer.turn()
    mine = installed.wheel.process_id
    installed.wheel.process_id = "another worker"
    installed.wheel.thread = second.thread
    second.receive("moved", 0, due=eta, again=True)
    second.consumer.turn()
    assert second.acked == ["moved"]
    installed.wheel.process_id = mine
    let_it_look(first)
    assert [task.task_id for task in installed.held()] == ["moved"]


@pytest.mark.parametrize("how", ["acknowledged here", "connection lost"])
def test_what_is_not_this_workers_any_more_is_not_withdrawn(
    installed: InstalledApp, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """If this worker has acknowledged a copy, or lost its connection, only the store's item can run the task, so it
    stays."""
    scene = Scene(installed)
    eta = iso_of(installed.store.now_ms() + 60_000)
    with Slow(scene, monkeypatch):
        scene.receive("far", 0, due=eta)
        scene.consumer.turn()
    if how == "connection lost":
        scene.takeover.end()
    else:
        scene.receive("far", 0, due=eta, again=True)
        scene.consumer.turn()
        assert scene.acked == ["far"]
    let_it_look(scene)
    assert [task.task_id for task in installed.held()] == ["far"]


def test_a_store_that_has_not_executed_the_call_yet_is_asked_twice(
    installed: InstalledApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store may answer the worker's first look before it executes the call that hung. So the worker looks twice."""
    scene = Scene(installed)
    schedule, sent = installed.store.schedule, list[Any]()

    def unheard(items: Any, **_: Any) -> Any:
        sent.extend(items)
        raise StoreUnavailable("no answer", in_doubt=True)

    monkeypatch.setattr(installed.store, "schedule", unheard)
    scene.receive("far", 60)
    scene.consumer.turn()
    let_it_look(scene)  # the store was away a moment ago
    installed.wheel._away_until_s = 0.0
    let_it_look(scene)
    schedule(sent)
    let_it_look(scene)
    assert (installed.held(), scene.consumer.later) == ([], [])


@pytest.mark.parametrize(("left_s", "patience_s"), [(60, 5.0), (4, 2.0), (0.1, 0.25), (-9, 0.25)])
def test_a_message_waits_for_the_store_no_longer_than_it_can(
    installed: InstalledApp, left_s: float, patience_s: float
) -> None:
    """The wait is half of the time that is left, at most a timeout and at least a quarter of a second."""
    scene = Scene(installed)
    scene.thread.hangs = True
    scene.receive("one", left_s)
    (one,) = scene.takeover._arrived
    assert one.patience_s == pytest.approx(patience_s, abs=0.05)


def test_while_a_call_hangs_nothing_more_is_handed_over(
    installed: InstalledApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Further messages are left to stock Celery at once, and no call for them is sent to the store."""
    scene = Scene(installed)
    monkeypatch.setattr(Inline, "stuck", property(lambda _: True))
    scene.receive("far", 60)
    assert (scene.left_to_stock, scene.consumer.soon, scene.thread.jobs) == (["far"], [], [])


def test_without_an_event_loop_the_wait_is_short(installed: InstalledApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """With gevent, eventlet and blocking transports, a message is stored at once or left to stock Celery."""
    monkeypatch.setattr("wheel_sched_celery.takeover.takeover.BLOCKING_S", 0.0)
    scene = Scene(installed)
    scene.consumer.hub = None
    scene.receive("held", 60)
    scene.thread.hangs = True
    scene.receive("left", 60)
    assert (scene.acked, scene.left_to_stock) == (["held"], ["left"])


def test_after_a_lost_connection_nothing_of_it_is_stored(installed: InstalledApp) -> None:
    """A message of the lost connection is not stored, because the broker delivers it again."""
    scene = Scene(installed)
    scene.receive("lost", 60)
    scene.takeover.end()
    scene.consumer.turn()
    assert (installed.held(), scene.acked, scene.stock) == ([], [], [])


@pytest.mark.parametrize(
    ("exchange", "key", "tag", "queue"),
    [
        ("", "celery", None, "celery"),
        ("", "unknown", None, None),
        ("celery", "celery", None, "celery"),
        ("celery", "other", None, None),
        ("wide", "a.b", None, "left"),
        ("wide", "a.b.c", None, None),
        ("wide", "b", None, "deep"),
        ("wide", "b.c.d", None, "deep"),
        ("wide", "anything", "tag of deep", "deep"),
        ("all", "", None, None),
    ],
)
def test_a_message_goes_back_to_the_queue_it_came_from(
    exchange: str, key: str, tag: str | None, queue: str | None
) -> None:
    """A message whose queue is not certain, or a broadcast, stays with stock Celery."""
    delivery = {"exchange": exchange, "routing_key": key, "consumer_tag": tag}
    found = own_queue(SimpleNamespace(delivery_info=delivery), Consumer())
    assert (None if found is None else found.name) == queue


def test_two_queues_that_match_are_no_certainty() -> None:
    """Two queues match the delivery, and it has no consumer tag. The message stays with stock Celery."""
    both = [Queue("one", Exchange("w", type="topic"), "#"), Queue("two", Exchange("w", type="topic"), "a")]
    message = SimpleNamespace(delivery_info={"exchange": "w", "routing_key": "a"})
    assert own_queue(message, Consumer(both)) is None

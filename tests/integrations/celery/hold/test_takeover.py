"""Takeover's decisions: by which clock, from which queue, and what stays with stock Celery."""

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
from wheel_sched_celery.message.due import iso_of
from wheel_sched_celery.store_thread import StoreThread
from wheel_sched_celery.takeover.source_queue import own_queue
from wheel_sched_celery.takeover.takeover import StoreClock, Takeover

from wheel_sched.errors import StoreUnavailable
from wheel_sched.store.core.settle import Dead, Done, Held

if TYPE_CHECKING:
    from conftest import House

HOUR_US = 3_600_000_000
FAR = datetime(2100, 6, 1, 12, tzinfo=UTC)
QUEUES = [
    Queue("celery", Exchange("celery"), routing_key="celery"),
    Queue("left", Exchange("wide", type="topic"), routing_key="a.*"),
    Queue("deep", Exchange("wide", type="topic"), routing_key="b.#"),
    Broadcast("all"),
]


class Consumer:
    """As much of Celery's consumer, and of kombu's, as takeover looks at."""

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
        """The end of the event loop's turn, and of those that it leads to."""
        while self.soon:
            self.soon.pop(0)()


class Inline(StoreThread):
    """Does everything at once, or when it is told to."""

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
    """One worker's takeover, with a clock of its own."""

    def __init__(self, house: House, wall_us: Callable[[], int] = lambda: time.time_ns() // 1000) -> None:
        self.house = house
        self.consumer = Consumer()
        house.wheel.thread = self.thread = Inline()
        self.clock_ahead_s = 0
        clock = StoreClock(house.wheel)
        real_us = clock.estimate_us
        clock.estimate_us = lambda: (real_us() or 0) + self.clock_ahead_s * 1_000_000  # type: ignore[method-assign]
        self.takeover = Takeover(house.wheel, self.consumer, clock, wall_us)
        self.stock: list[dict[str, Any]] = []
        self.acked: list[str] = []
        self.strategy = self.takeover.wrap(self._stock)

    def _stock(self, message: Any, body: Any, ack: Any, reject: Any, callbacks: Any, to_timestamp: Any = None) -> None:
        identity = message.headers if "id" in message.headers else body
        self.stock.append({"id": identity["id"], "to_timestamp": to_timestamp})

    def receive(
        self, task_id: str, in_s: float, errors: Any = None, *, again: bool = False, due: str = "", **headers: Any
    ) -> None:
        eta = due or iso_of(self.house.store.now_ms() + int(in_s * 1000))
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
        """What a broker delivers."""
        task_id = message.headers["id"] if "id" in message.headers else message.decode()["id"]
        self.strategy(message, message.decode(), lambda *_: self.acked.append(task_id), None, [])
        self.consumer.turn()

    @property
    def left_to_stock(self) -> list[str]:
        return [each["id"] for each in self.stock]


def test_a_turns_messages_are_stored_in_one_call_and_then_acknowledged(house: House, monkeypatch: Any) -> None:
    """Not before: until then they are the broker's."""
    scene = Scene(house)
    calls: list[int] = []
    schedule = house.store.schedule
    monkeypatch.setattr(house.store, "schedule", lambda items, **_: calls.append(len(items)) or schedule(items))
    for i in range(5):
        scene.receive(f"id-{i}", 60)
    assert (scene.acked, len(scene.consumer.soon)) == ([], 1)
    scene.consumer.turn()
    assert (calls, len(scene.acked), scene.stock) == ([5], 5, [])
    assert {(task.queue, task.priority) for task in house.held()} == {("celery", 3)}
    scene.receive("id-0", 60)
    scene.consumer.turn()
    assert len(scene.acked) == 6


@pytest.mark.parametrize("offset_us", [-HOUR_US, 0, HOUR_US], ids=["behind", "right", "ahead"])
def test_a_workers_wrong_clock_moves_nothing(house: House, offset_us: int) -> None:
    """What is due by the store's clock goes to stock, the timer's instant corrected, and is not taken over again."""
    scene = Scene(house, lambda: time.time_ns() // 1000 + offset_us)
    scene.receive("due", -0.01)
    scene.receive("soon", 1.5)
    scene.receive("later", 3)
    scene.consumer.turn()
    assert (scene.left_to_stock, scene.acked) == (["due", "soon"], ["later"])
    instant = scene.stock[1]["to_timestamp"](10_000.0)
    assert instant == pytest.approx(10_000.0 + offset_us / 1e6, abs=5)


def test_the_stores_clock_never_goes_back_for_a_worker(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else dispatched messages would be taken over again."""
    now_us = [1_000_000]
    clock = StoreClock(house.wheel, lambda: now_us[0] * 1000)
    times = iter([5_000_000, 1_000])
    monkeypatch.setattr(house.wheel, "store_now_us", lambda: next(times) * 1000)
    first = clock.now_us()
    now_us[0] += 120_000_000
    assert first is not None
    assert clock.now_us() == first


@pytest.mark.parametrize(
    "headers",
    [{"eta": None}, {"eta": "rubbish"}, {"eta": 5}, {"expires": iso_of(1_000)}, {"id": None}],
    ids=["no eta", "no date", "a number", "expired", "no id"],
)
def test_what_is_odd_stays_with_stock(house: House, headers: dict[str, Any]) -> None:
    """Celery says what is wrong with it, or does not mind."""
    scene = Scene(house)
    scene.receive("odd", 60, **headers)
    scene.consumer.turn()
    assert (len(scene.stock), house.held()) == (1, [])


def test_revoked_and_undecodable_ones_stay_with_stock(house: House) -> None:
    """Stock drops the first and reports the second."""
    scene = Scene(house)
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


def test_what_is_handed_over_takes_no_place_among_the_prefetched(house: House) -> None:
    """Else a worker whose store hangs holds nothing but messages it asks about, and fetches no task that is due."""
    scene = Scene(house)
    for task_id in "abc":
        scene.receive(task_id, 60)
    assert scene.consumer.qos.value == 7
    scene.consumer.turn()
    assert (scene.acked, scene.consumer.qos.value) == (["a", "b", "c"], 4)


def test_with_the_store_away_they_stay_in_the_worker(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unacknowledged, in its timer, as ever."""
    scene = Scene(house)

    def away(_: Any, **_more: Any) -> Any:
        raise StoreUnavailable("gone")

    scene.receive("early", 60)
    monkeypatch.setattr(house.store, "schedule", away)
    scene.consumer.turn()
    assert (scene.left_to_stock, scene.acked) == (["early"], [])


def test_a_copy_of_what_waits_is_dropped_however_late_the_broker_redelivers_it(house: House) -> None:
    """Far from its due time it is stored under the same id, near it the stored one is asked for."""
    first, second = Scene(house), Scene(house)
    eta = iso_of(house.store.now_ms() + 60_000)
    first.receive("slow", 0, due=eta)
    first.consumer.turn()
    second.receive("slow", 0, due=eta, again=True)
    second.consumer.turn()
    assert (len(house.held()), second.acked) == (1, ["slow"])
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
    house_of: Callable[..., House], monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """Its producer got no answer; the worker that finds it makes the same item of it. Other arguments make another."""
    house = house_of(conf={"task_protocol": options.pop("task_protocol", 2), "task_queues": QUEUES})
    begin = house.wheel._begin

    def lost(items: Any) -> Any:
        begin(items)()
        raise StoreUnavailable("no answer")

    monkeypatch.setattr(house.wheel, "_begin", lost)
    with house.app.connection_for_write() as connection:
        QUEUES[0](connection.default_channel).declare()
    house.send("note", 1, task_id="doubt", eta=FAR, **options)
    monkeypatch.setattr(house.wheel, "_begin", begin)
    house.wheel._away_until_s = 0.0
    (message,) = house.published()
    scene = Scene(house)
    body = None if "task" in message.headers else message.payload
    scene.strategy(message, body, lambda *_: scene.acked.append("doubt"), None, [])
    scene.consumer.turn()
    assert (len(house.held()), scene.acked) == (1, ["doubt"])
    house.send("note", 2, task_id="doubt", eta=FAR, **options)
    assert len(house.held()) == 2


def test_a_copy_of_what_has_left_the_store_runs(house: House) -> None:
    """It may be the one that the store sent, whose worker died."""
    scene = Scene(house)
    scene.receive("sent", 1, again=True)
    scene.consumer.turn()
    assert (scene.left_to_stock, scene.acked) == (["sent"], [])


def test_a_copy_runs_when_the_store_cannot_be_asked(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice is better than never."""
    scene = Scene(house)
    scene.receive("far", 60)
    scene.consumer.turn()

    def away(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(house.store, "get", away)
    scene.receive("near", 1, again=True)
    scene.consumer.turn()
    assert scene.left_to_stock == ["near"]


@pytest.mark.parametrize("protocol", [1, 2])
@pytest.mark.parametrize("again", [False, True], ids=["first", "redelivered"])
def test_what_the_store_has_sent_is_never_taken_over_again(
    house_of: Callable[..., House], protocol: int, again: bool
) -> None:
    """It arrives long before it is due while its item is in flight: an acknowledgement would be the end of it."""
    house = house_of(conf={"task_protocol": protocol})
    task_id = house.send(countdown=60).id
    claim = house.claim()
    (message,) = house.dispatch(claim)
    message.delivery_info = {**message.delivery_info, "redelivered": again}
    scene = Scene(house)
    scene.pass_on(message)
    house.store.settle(claim, [Done(item.id) for item in claim.items])
    assert (scene.acked, scene.left_to_stock, house.held()) == ([], [task_id], [])
    scene.pass_on(message)  # and not when the item is gone
    assert (scene.acked, scene.left_to_stock, house.held()) == ([], [task_id] * 2, [])


def test_a_rescheduled_task_is_not_taken_over_either(house: House) -> None:
    """Its item keeps the id of its first ETA, its message says the new one."""
    house.send(countdown=60)
    tasks = HeldTasks(house.app)
    tasks.reschedule(tasks.select(), house.store.now_ms() + 600_000)
    (message,) = house.dispatch(house.claim())
    scene = Scene(house)
    scene.pass_on(message)
    assert (scene.acked, len(scene.stock), house.held()) == ([], 1, [])


@pytest.mark.parametrize("changed", [{"retries": 1}, {"eta": "2100-01-01T00:00:00+00:00"}, {"id": "another"}], ids=str)
def test_a_mark_that_was_copied_into_another_message_means_nothing(house: House, changed: dict[str, Any]) -> None:
    """Celery copies the headers of a task into its retries; stock workers send those."""
    house.send(countdown=60)
    (message,) = house.dispatch(house.claim())
    message.headers.update(changed)
    scene = Scene(house)
    scene.pass_on(message)
    assert (len(scene.acked), scene.stock) == (1, [])


@pytest.mark.parametrize("again", [False, True], ids=["far", "near and redelivered"])
@pytest.mark.parametrize("state", ["leased", "dead", "held"])
def test_only_what_waits_in_the_store_is_acknowledged(house: House, state: str, again: bool) -> None:
    """A message without the mark whose item is there: one on its way out, or given up, does not stand for it."""
    eta = iso_of(house.store.now_ms() + 60_000)
    scene = Scene(house)
    scene.receive("copy", 0, due=eta)
    scene.consumer.turn()
    claim = house.claim()
    if state != "leased":
        (item,) = claim.items
        house.store.settle(claim, [Dead(item.id, "unroutable") if state == "dead" else Held(item.id, "paused")])
    if again:
        scene.clock_ahead_s = 59
    scene.receive("copy", 0, due=eta, again=again)
    scene.consumer.turn()
    assert scene.acked == (["copy"] * 2 if state == "held" else ["copy"])
    assert scene.left_to_stock == ([] if state == "held" else ["copy"])


def test_the_loop_never_waits_for_a_store_that_hangs(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message stays the broker's; when it has waited long enough it is the worker's own timer's, once."""
    scene = Scene(house)
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
    assert (scene.acked, scene.left_to_stock, house.held()) == ([], ["far"], [])


class Slow:
    """A store that executes what it was sent, and says so too late."""

    def __init__(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        self._scene, self._monkeypatch = scene, monkeypatch
        self._schedule = scene.house.store.schedule

    def __enter__(self) -> None:
        self._monkeypatch.setattr(self._scene.house.store, "schedule", self._unheard)

    def __exit__(self, *_: object) -> None:
        self._monkeypatch.setattr(self._scene.house.store, "schedule", self._schedule)
        self._scene.house.wheel._away_until_s = 0.0

    def _unheard(self, items: Any, **more: Any) -> Any:
        self._schedule(items, **more)
        raise StoreUnavailable("no answer", in_doubt=True)


def let_it_look(scene: Scene) -> None:
    """The time has come at which doubts are looked into."""
    later, scene.consumer.later = scene.consumer.later, []
    for call in later:
        call()


def test_what_the_store_got_unheard_is_withdrawn_when_it_answers_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The messages are the worker's timer's by then: each ran twice. One that was stored and heard of stays."""
    scene = Scene(house)
    scene.receive("heard", 60)
    scene.consumer.turn()
    with Slow(scene, monkeypatch):
        for i in range(3):
            scene.receive(f"unheard {i}", 60)
        scene.consumer.turn()
    assert (len(scene.stock), len(house.held())) == (3, 4)
    let_it_look(scene)
    assert [task.task_id for task in house.held()] == ["heard"]
    assert (scene.acked, scene.consumer.later) == (["heard"], [])


def test_an_answer_that_comes_after_the_message_was_let_go_is_undone(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call succeeds, but its patience was over."""
    scene = Scene(house)
    schedule = house.store.schedule
    now_s = time.monotonic()

    def slow(items: Any, **more: Any) -> Any:
        monkeypatch.setattr(time, "monotonic", lambda: now_s + 5.1)
        let_it_look(scene)  # the loop goes on meanwhile
        return schedule(items, **more)

    scene.thread.hangs = True
    scene.receive("far", 60)
    scene.consumer.turn()
    scene.takeover._clock.now_us()  # it answered just now
    monkeypatch.setattr(house.store, "schedule", slow)
    scene.thread.go_on()
    scene.consumer.turn()
    assert (scene.left_to_stock, scene.acked, len(house.held())) == (["far"], [], 1)
    scene.thread.hangs = False
    let_it_look(scene)
    assert (house.held(), scene.acked) == ([], [])


def test_what_another_worker_has_acknowledged_a_copy_of_is_not_withdrawn(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker gave it to him meanwhile: the store's is the only one that is sure to run."""
    first, second = Scene(house), Scene(house)
    eta = iso_of(house.store.now_ms() + 60_000)
    with Slow(first, monkeypatch):
        first.receive("moved", 0, due=eta)
        first.consumer.turn()
    mine = house.wheel.process_id
    house.wheel.process_id = "another worker"
    house.wheel.thread = second.thread
    second.receive("moved", 0, due=eta, again=True)
    second.consumer.turn()
    assert second.acked == ["moved"]
    house.wheel.process_id = mine
    let_it_look(first)
    assert [task.task_id for task in house.held()] == ["moved"]


@pytest.mark.parametrize("how", ["acknowledged here", "connection lost"])
def test_what_is_not_this_workers_any_more_is_not_withdrawn(
    house: House, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A copy was acknowledged by this very worker, or the broker has all messages back."""
    scene = Scene(house)
    eta = iso_of(house.store.now_ms() + 60_000)
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
    assert [task.task_id for task in house.held()] == ["far"]


def test_a_store_that_is_not_through_yet_is_looked_into_once_more(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on, and may answer before it gets to what was sent to it while it hung. In the end one gives up."""
    scene = Scene(house)
    schedule, sent = house.store.schedule, list[Any]()

    def unheard(items: Any, **_: Any) -> Any:
        sent.extend(items)
        raise StoreUnavailable("no answer", in_doubt=True)

    monkeypatch.setattr(house.store, "schedule", unheard)
    scene.receive("far", 60)
    scene.consumer.turn()
    let_it_look(scene)  # the store was away a moment ago
    house.wheel._away_until_s = 0.0
    let_it_look(scene)
    schedule(sent)
    let_it_look(scene)
    assert (house.held(), scene.consumer.later) == ([], [])


@pytest.mark.parametrize(("left_s", "patience_s"), [(60, 5.0), (4, 2.0), (0.1, 0.25), (-9, 0.25)])
def test_a_message_waits_for_the_store_no_longer_than_it_can(house: House, left_s: float, patience_s: float) -> None:
    """Half of the time that is left, a timeout at most."""
    scene = Scene(house)
    scene.thread.hangs = True
    scene.receive("one", left_s)
    (one,) = scene.takeover._arrived
    assert one.patience_s == pytest.approx(patience_s, abs=0.05)


def test_while_a_call_hangs_nothing_more_is_handed_over(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it is not in doubt either whether the store has it."""
    scene = Scene(house)
    monkeypatch.setattr(Inline, "stuck", property(lambda _: True))
    scene.receive("far", 60)
    assert (scene.left_to_stock, scene.consumer.soon, scene.thread.jobs) == (["far"], [], [])


def test_without_an_event_loop_the_wait_is_short(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """gevent, eventlet, transports that only block: stored before the strategy returns, or left to stock."""
    monkeypatch.setattr("wheel_sched_celery.takeover.takeover.BLOCKING_S", 0.0)
    scene = Scene(house)
    scene.consumer.hub = None
    scene.receive("held", 60)
    scene.thread.hangs = True
    scene.receive("left", 60)
    assert (scene.acked, scene.left_to_stock) == (["held"], ["left"])


def test_after_a_lost_connection_nothing_of_it_is_stored(house: House) -> None:
    """The broker sends those messages again."""
    scene = Scene(house)
    scene.receive("lost", 60)
    scene.takeover.end()
    scene.consumer.turn()
    assert (house.held(), scene.acked, scene.stock) == ([], [], [])


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
    """Or nowhere, when that is not certain or it was a broadcast."""
    delivery = {"exchange": exchange, "routing_key": key, "consumer_tag": tag}
    found = own_queue(SimpleNamespace(delivery_info=delivery), Consumer())
    assert (None if found is None else found.name) == queue


def test_two_queues_that_match_are_no_certainty() -> None:
    """Without a consumer tag."""
    both = [Queue("one", Exchange("w", type="topic"), "#"), Queue("two", Exchange("w", type="topic"), "a")]
    message = SimpleNamespace(delivery_info={"exchange": "w", "routing_key": "a"})
    assert own_queue(message, Consumer(both)) is None

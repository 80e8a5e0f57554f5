"""What users know of Celery's beat, run against Celery's own `Scheduler` and against the entries in the store.

Each test runs twice, once for each of the two, on a clock that the test moves. So a difference in behaviour fails one
of the two runs.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import celery
import pytest
from celery import Celery
from celery.beat import BeatLazyFunc, ScheduleEntry, Scheduler
from celery.schedules import crontab, schedule
from kombu import Exchange
from wheel_sched_celery.beat.code_entries import defined
from wheel_sched_celery.beat.syncing import sync

NEWEST = pytest.mark.skipif(celery.VERSION < (5, 7), reason="older releases do otherwise")

START = datetime(2026, 3, 10, 12, tzinfo=UTC)


class Sent(NamedTuple):
    """One task that was sent."""

    after_s: float
    task: str
    argsrepr: str
    kwargsrepr: str
    routing_key: str
    headers: dict[str, Any]


class Stock:
    """Celery's own scheduler."""

    def __init__(self, entries: dict[str, Any], conf: dict[str, Any]) -> None:
        self.app = _VirtualApp("stock", broker="memory://", backend="cache+memory://", set_as_current=False)
        self.app.conf.update(beat_schedule=entries, **conf)
        _register(self.app)
        self.sent: list[Sent] = []
        self.scheduler = Scheduler(self.app)
        self.scheduler.__dict__["producer"] = _Producer(self)

    def run(self, seconds: float) -> list[Sent]:
        """Let time pass. Returns what was sent in it."""
        known, until = len(self.sent), self.app.moment + timedelta(seconds=seconds)
        while self.app.moment <= until:
            self.app.moment += timedelta(seconds=max(0.001, self.scheduler.tick()))
        self.app.moment = until
        return self.sent[known:]

    def set(self, name: str, given: dict[str, Any]) -> None:
        """Add an entry, or give it another definition."""
        self.scheduler.update_from_dict({name: given})

    def remove(self, name: str) -> None:
        del self.scheduler.schedule[name]

    def names(self) -> set[str]:
        return set(self.scheduler.schedule)

    def runs(self, name: str) -> int:
        return int(self.scheduler.schedule[name].total_run_count)


class _VirtualApp(Celery):
    moment = START

    def now(self) -> datetime:
        """Overrides `Celery.now`."""
        return self.moment.astimezone(self.timezone)


class _Producer:
    """Records what Celery's scheduler publishes."""

    auto_declare = False
    serializer = compression = channel = None
    routing_key = ""

    def __init__(self, stock: Stock) -> None:
        self._stock = stock
        self.exchange = Exchange("")
        self.connection = stock.app.connection_for_write()

    def publish(self, body: Any, **options: Any) -> None:
        headers = options["headers"]
        after_s = (self._stock.app.moment - START).total_seconds()
        texts = headers["argsrepr"], headers["kwargsrepr"]
        self._stock.sent.append(Sent(after_s, headers["task"], *texts, options["routing_key"], headers))


class Ours:
    """Entries in the store, ticked by a worker."""

    def __init__(self, make_beat: Callable[..., Any], entries: dict[str, Any], conf: dict[str, Any]) -> None:
        self.beat = make_beat(beat_schedule=entries, **conf)
        _register(self.beat.app)
        self._start_ms = self.beat.now_ms
        sync(self.beat.entries)

    def run(self, seconds: float) -> list[Sent]:
        """Let time pass. Returns what was sent in it."""
        known = len(self.beat.sent)
        self.beat.run_until(self.beat.now_ms + round(seconds * 1000))
        return [self._sent(task) for task in self.beat.sent[known:]]

    def _sent(self, task: Any) -> Sent:
        texts = task.headers["argsrepr"], task.headers["kwargsrepr"]
        return Sent((task.eta_ms - self._start_ms) / 1000, task.name, *texts, task.routing_key, dict(task.headers))

    def set(self, name: str, given: dict[str, Any]) -> None:
        """Add an entry, or give it another definition."""
        entries = self.beat.entries
        made = entries.make(name, **given)
        if entries.get(name) is None:
            entries.add(made)
        else:
            entries.replace(made)

    def remove(self, name: str) -> None:
        self.beat.entries.remove(name)

    def names(self) -> set[str]:
        return {one.name for one in self.beat.entries.all()}

    def runs(self, name: str) -> int:
        return int(self.beat.entry(name).runs)


def _register(app: Celery) -> None:
    app.conf.task_routes = {"routed": {"queue": "fast"}}
    app.task(_nothing, name="routed", shared=False)
    app.task(_nothing, name="plain", shared=False)


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Does nothing."""


Start = Callable[..., Any]


@pytest.fixture(params=["stock", "wheel"])
def start(request: pytest.FixtureRequest, make_beat: Callable[..., Any]) -> Start:
    """Starts one of the two with a `beat_schedule`; keyword arguments are further configuration."""

    def start(entries: dict[str, Any], **conf: Any) -> Any:
        return Stock(entries, conf) if request.param == "stock" else Ours(make_beat, entries, conf)

    return start


def entry(task: str = "plain", value: Any = 10, **rest: Any) -> dict[str, Any]:
    return {"task": task, "schedule": value, **rest}


def times(sent: list[Sent]) -> list[float]:
    """When the tasks were sent, to a tenth of a second: Celery's scheduler wakes some milliseconds around it."""
    return [round(one.after_s, 1) for one in sent]


def of(sent: list[Sent], task: str) -> list[Sent]:
    return [one for one in sent if one.task == task]


@pytest.mark.parametrize("value", [10, 10.0, timedelta(seconds=10), schedule(10)], ids=repr)
def test_an_interval_is_due_after_each_interval(start: Start, value: Any) -> None:
    """An interval entry runs first one interval after the start, not at the start."""
    assert times(start({"one": entry(value=value)}).run(35)) == [10, 20, 30]


def test_half_a_second_is_not_rounded(start: Start) -> None:
    """An entry with an interval of half a second runs every half second."""
    assert times(start({"one": entry(value=0.5)}).run(1.7)) == [0.5, 1, 1.5]


def test_a_crontab_is_due_at_its_minutes(start: Start) -> None:
    """The minutes and hours of a crontab are read in the app's time zone."""
    one = start({"one": entry(value=crontab(minute="*/2", hour="13"))}, timezone="Europe/Berlin")
    assert times(one.run(500)) == [120, 240, 360, 480]


def test_several_entries_run_in_order_of_time(start: Start) -> None:
    """Two entries with different intervals run at their own times, and neither delays the other."""
    sent = start({"a": entry(value=10, args=("a",)), "b": entry(value=15, args=("b",))}).run(31)
    assert [(at, one.argsrepr) for at, one in zip(times(sent), sent, strict=True)][:3] == [
        (10, "['a']"),
        (15, "['b']"),
        (20, "['a']"),
    ]
    assert sorted(one.argsrepr for one in sent[3:]) == ["['a']", "['b']"]


def test_the_routes_of_the_app_count(start: Start) -> None:
    """The app's routes choose the queue of an entry's task, as for `apply_async`."""
    (sent,) = start({"one": entry("routed")}).run(10.1)
    assert sent.routing_key == "fast"


def test_a_task_that_is_not_registered_is_sent_by_name(start: Start) -> None:
    """An entry may name a task that the process of beat does not know."""
    (sent,) = start({"one": entry("far.away")}).run(10.1)
    assert (sent.task, sent.routing_key) == ("far.away", "celery")


@NEWEST
def test_options_of_an_entry_reach_the_message(start: Start) -> None:
    """The message has the entry's queue, headers and expiry, and a header that beat adds."""
    options = {"queue": "mail", "headers": {"mine": 1}, "expires": 600}
    (sent,) = start({"one": entry(args=(1,), kwargs={"a": 2}, options=options)}).run(10.1)
    assert (sent.routing_key, sent.kwargsrepr) == ("mail", "{'a': 2}")
    assert sent.argsrepr in ("[1]", "(1,)")
    assert (sent.headers["mine"], sent.headers["celery_beat_task"]) == (1, True)
    assert sent.headers["expires"] is not None
    assert sent.headers["eta"] is None


def test_no_arguments_are_empty_arguments(start: Start) -> None:
    """If an entry's arguments are None, the task gets no arguments."""
    (sent,) = start({"one": entry(args=None, kwargs=None)}).run(10.1)
    assert (sent.argsrepr, sent.kwargsrepr) == ("()", "{}")


def test_an_argument_that_is_a_lazy_function_is_called_at_each_run(start: Start) -> None:
    """A `BeatLazyFunc` is called by the process that sends the task, once for each run."""
    calls: list[int] = []

    def count() -> int:
        calls.append(1)
        return len(calls)

    sent = start({"one": entry(kwargs={"n": BeatLazyFunc(count)})}).run(20.1)
    assert [one.kwargsrepr for one in sent] == ["{'n': 1}", "{'n': 2}"]


def test_each_run_has_an_id_of_its_own(start: Start) -> None:
    """The runs of an entry have different ids. Each run is the root of its own tasks."""
    sent = start({"one": entry()}).run(30.1)
    assert len({one.headers["id"] for one in sent}) == 3
    assert all(one.headers["root_id"] == one.headers["id"] for one in sent)


def test_runs_are_counted(start: Start) -> None:
    """Each entry has its own count of runs."""
    one = start({"one": entry(), "two": entry(value=100)})
    one.run(30.1)
    assert (one.runs("one"), one.runs("two")) == (3, 0)


def test_another_schedule_counts_at_once(start: Start) -> None:
    """If an entry gets a shorter interval, its next run is that interval after its last run."""
    one = start({"one": entry(value=1000)})
    assert one.run(5) == []
    one.set("one", entry(value=10))
    assert len(one.run(10.5)) == 1


def test_an_entry_added_later_runs(start: Start) -> None:
    """The first interval of an entry that is added later begins when it is added."""
    one = start({})
    one.run(3)
    one.set("late", entry())
    assert len(of(one.run(10.5), "plain")) == 1


def test_a_removed_entry_does_not_run(start: Start) -> None:
    """After one of two entries was removed, only the other one runs."""
    one = start({"one": entry("routed"), "two": entry("plain")})
    one.run(10.1)
    one.remove("one")
    sent = one.run(20)
    assert (len(of(sent, "routed")), len(of(sent, "plain"))) == (0, 2)


class _Broken(schedule):  # type: ignore[misc]  # celery has no types
    def is_due(self, last_run_at: datetime) -> Any:
        raise RuntimeError("no answer")


@NEWEST
def test_a_schedule_that_fails_does_not_stop_the_others(start: Start) -> None:
    """If the `is_due` of one entry raises, the other entry runs as usual."""
    one = start({"bad": entry("routed", _Broken(1)), "good": entry("plain")})
    assert times(of(one.run(20.1), "plain")) == [10, 20]


def test_arguments_that_cannot_be_sent_do_not_stop_the_others(start: Start) -> None:
    """If the serializer refuses the arguments of one entry, the other entry runs as usual."""
    one = start({"bad": entry("routed", args=(object(),)), "good": entry("plain")})
    assert times(of(one.run(20.1), "plain")) == [10, 20]


class _EveryOther(schedule):  # type: ignore[misc]  # as above
    """A class of the app: due 7 s after its last run."""

    def is_due(self, last_run_at: datetime) -> Any:
        passed_s = (self.now() - last_run_at).total_seconds()
        return passed_s >= 7, 7 - passed_s if passed_s < 7 else 7


def test_a_schedule_class_of_the_app_is_asked(start: Start) -> None:
    """The answer of the app's own schedule class says whether an entry is due, and when to ask again."""
    assert len(start({"one": entry(value=_EveryOther(1))}).run(30)) == 4


def test_an_entry_may_be_an_object_of_celery(start: Start) -> None:
    """An entry may be a `ScheduleEntry`, which is what `add_periodic_task` makes."""
    one = start({})
    app = one.app if isinstance(one, Stock) else one.beat.app
    app.conf.beat_schedule = {"one": ScheduleEntry(name="one", task="plain", schedule=schedule(10), app=app)}
    if isinstance(one, Stock):
        one.scheduler.update_from_dict(app.conf.beat_schedule)
    else:
        sync(one.beat.entries)
    assert len(one.run(10.1)) == 1


@pytest.mark.parametrize(
    ("expires", "autoexpire", "there"), [(None, False, False), (30, False, True), (30, True, False)]
)
def test_the_clean_up_of_a_result_backend(
    make_beat: Callable[..., Any], expires: int | None, autoexpire: bool, there: bool
) -> None:
    """The entry that cleans up results exists only if the backend does not do so itself and `result_expires` is set."""
    stock = Stock({}, {"result_expires": expires})
    stock.app.backend.supports_autoexpire = autoexpire
    beat = make_beat(result_expires=expires)
    beat.app.backend.supports_autoexpire = autoexpire
    scheduler = Scheduler(stock.app)
    scheduler.install_default_entries(scheduler.schedule)  # as `celery beat` does after it has read `beat_schedule`
    assert ("celery.backend_cleanup" in scheduler.schedule) is there
    entries, _ = defined(beat.wheel)
    assert ("celery.backend_cleanup" in entries) is there
    if there:
        mine, theirs = entries["celery.backend_cleanup"], scheduler.schedule["celery.backend_cleanup"]
        assert (mine.task, dict(mine.options)) == (theirs.task, theirs.options)

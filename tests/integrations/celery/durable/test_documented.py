"""Examples of Celery's user guide, with each ETA in the store: calling, canvas, retries and remote control.

One worker gets all tasks at once. Its horizon is half a second, so a task with a countdown of one second is held.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from celery import chain, chord, group
from celery.exceptions import ChordError

if TYPE_CHECKING:
    from conftest import Stage

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(180),
    pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning"),  # Celery's own, of redis-py 8
]

LATER: dict[str, Any] = {"countdown": 1}
LONG_S = 100.0  # for results: generous, the machine is shared
SETTINGS = '{"include": ["documented_tasks"], "wheel_horizon": "500ms", "result_extended": true}'
Check = Callable[[], None]


def test_the_user_guide_holds_with_every_eta_in_the_store(stage: Stage) -> None:
    """The test sends all tasks together, then checks one example after the other."""
    app = stage.producer(horizon="500ms")
    stage.worker("-c", "4", pool="prefork", SETTINGS=SETTINGS).wait_ready()
    tasks = stubs(app)
    checks = [
        check
        for chapter in (calling, requests_are_those_of_stock, retrying, canvas, larger_canvas, controlling)
        for check in chapter(stage, app, tasks)
    ]
    for check in checks:
        check()
    runs = stage.runs()
    assert [run for run in runs if run.eta_s is not None and run.at_s < run.eta_s] == []
    assert stage.store.counts().happened("accepted") >= 60, "they did go through the store"


def consumed(inspect: Any) -> set[str]:
    """The names of the queues from which the only worker consumes."""
    (queues,) = inspect.active_queues().values()
    return {queue["name"] for queue in queues}


def stubs(app: Any) -> SimpleNamespace:
    """The worker's tasks by name, as a producer without their code knows them."""

    def elsewhere(*_args: Any, **_kwargs: Any) -> None:
        """Does nothing: only the worker has the code."""

    def stub(name: str) -> Any:
        return app.task(name=name, shared=False, typing=False)(elsewhere)

    names = ["note", "add", "total", "again", "swap", "fail", "report", "facts", "progress", "flaky", "nap"]
    return SimpleNamespace(**{name: stub(name) for name in names})


def gives(result: Any, value: Any) -> Check:
    """Makes a check that a result has this value."""

    def check() -> None:
        assert result.get(timeout=LONG_S) == value

    return check


def ran(stage: Stage, name: str, times: int = 1) -> Check:
    """Makes a check that a task ran this number of times."""

    def count() -> int:
        return sum(run.name == name for run in stage.runs())

    def check() -> None:
        stage.wait_until(lambda: count() >= times, f"{name} ran")
        assert count() == times

    return check


def ended(result: Any, state: str) -> Check:
    """Makes a check that a result ends in this state."""

    def check() -> None:
        result.get(timeout=LONG_S, propagate=False)
        assert result.state == state

    return check


def calling(stage: Stage, app: Any, tasks: SimpleNamespace) -> list[Check]:
    """The guide's "Calling Tasks": ETA, countdown, links, errbacks, expiration, compression, routing, results, ids."""
    add, note = tasks.add, tasks.note
    odd = (datetime.now(UTC) + timedelta(seconds=1.2)).astimezone(timezone(timedelta(hours=5, minutes=45)))
    linked = add.apply_async((2, 2), link=add.s(16), **LATER)
    twice = add.apply_async((1, 1), link=[add.s(10), add.si(50, 50)], **LATER)
    ignored = note.apply_async(("ignored",), ignore_result=True, **LATER)
    named = note.apply_async(("named",), task_id="chosen-by-the-caller", **LATER)

    def children() -> None:
        assert linked.get(timeout=LONG_S) == 4
        stage.wait_until(lambda: linked.children, "the callback was sent")
        assert [child.get(timeout=LONG_S) for child in linked.children] == [20]

    def ignored_has_no_result() -> None:
        ran(stage, "ignored")()
        assert ignored.state == "PENDING"

    def found_by_id() -> None:
        assert named.id == "chosen-by-the-caller"
        assert app.AsyncResult("chosen-by-the-caller").get(timeout=LONG_S) == "named"

    fail = tasks.fail.apply_async(("boom",), link_error=tasks.report.s(), **LATER)
    return [
        gives(add.apply_async((2, 3), **LATER), 5),
        gives(add.apply_async((2, 4), eta=odd), 6),
        gives(add.apply_async(kwargs={"x": 2, "y": 5}, **LATER), 7),
        children,
        ran(stage, "add 2 10"),
        ran(stage, "add 50 50"),
        gives(twice, 2),
        ended(fail, "FAILURE"),
        ran(stage, "report boom"),
        ended(note.apply_async(("expired",), countdown=1.5, expires=1), "REVOKED"),
        gives(note.apply_async(("in time",), countdown=1, expires=600), "in time"),
        gives(note.apply_async(("zipped" * 100,), compression="gzip", **LATER), "zipped" * 100),
        gives(note.apply_async(("not dated",), serializer="json", priority=3, **LATER), "not dated"),
        ignored_has_no_result,
        found_by_id,
        gives(tasks.progress.apply_async(("single",), **LATER), "done"),
        ran(stage, "single PROGRESS"),
        gives(tasks.nap.apply_async(("limited",), soft_time_limit=1, **LATER), "soft"),
    ]


def requests_are_those_of_stock(stage: Stage, app: Any, tasks: SimpleNamespace) -> list[Check]:
    """A held task sees the same request as a task that stock Celery sends with an ETA of now."""
    eta = datetime.now(UTC)
    checks: list[Check] = []
    options: list[dict[str, Any]] = [
        {},
        {"headers": {"x-tenant": "t1"}, "priority": 6, "shadow": "another name"},
        {"expires": 600, "time_limit": 300, "soft_time_limit": 200},
        {"ignore_result": False, "compression": "zlib"},
    ]
    for each in options:
        stock = stage.stock.send_task("facts", ([1, {"é": None}],), {"k": 1.5}, eta=eta, **each)
        held = app.send_task("facts", ([1, {"é": None}],), {"k": 1.5}, **LATER, **each)

        def alike(stock: Any = stock, held: Any = held) -> None:
            assert held.get(timeout=LONG_S) == stock.get(timeout=LONG_S)

        checks.append(alike)
    return checks


def retrying(stage: Stage, app: Any, tasks: SimpleNamespace) -> list[Check]:
    """The guide's "Tasks": `retry`, `autoretry_for` with backoff (1 s, then 2 s), `max_retries`."""
    start = datetime.now(UTC)
    backed_off = tasks.flaky.apply_async((2,), **LATER)

    def waited() -> None:
        assert backed_off.get(timeout=LONG_S) == 2
        runs = [run for run in stage.runs() if run.name == "flaky"]
        at_s = [min(run.at_s for run in runs if run.retries == attempt) for attempt in range(3)]
        assert at_s[0] >= start.timestamp() + 1
        assert sorted(at_s) == at_s

    gone = tasks.flaky.apply_async((9,), **LATER)
    return [
        waited,
        ended(gone, "FAILURE"),
        ran(stage, "flaky", 6),
        gives(tasks.again.apply_async(("again", 1, 2), **LATER), "again"),
        ran(stage, "again", 3),
    ]


def canvas(stage: Stage, app: Any, tasks: SimpleNamespace) -> list[Check]:
    """The guide's "Canvas": partials, immutability, chains, groups, chords, map, starmap, chunks."""
    add, total = tasks.add, tasks.total
    chained = chain(add.s(4, 4).set(**LATER), add.s(8).set(**LATER), add.s(10)).apply_async()
    skewed = group(add.s(i, i) for i in range(3)).skew(start=1, stop=3).apply_async()
    grouped = group(add.s(i, 1) for i in range(4)).apply_async(**LATER)
    broken = chord(
        [add.s(1, 1).set(**LATER), tasks.fail.s("in the header").set(**LATER)],
        total.s().set(**LATER).on_error(tasks.report.s()),
        app=app,
    ).apply_async()

    def parents() -> None:
        assert chained.get(timeout=LONG_S) == 26
        assert (chained.parent.get(timeout=LONG_S), chained.parent.parent.get(timeout=LONG_S)) == (16, 8)

    def group_result() -> None:
        assert grouped.get(timeout=LONG_S) == [1, 2, 3, 4]
        assert grouped.successful()
        assert grouped.completed_count() == 4

    def broken_chord() -> None:
        stage.wait_until(lambda: broken.state == "FAILURE", "the chord failed")
        assert isinstance(broken.result, ChordError)
        stage.wait_until(
            lambda: any(str(run.name).startswith("report Dependency") for run in stage.runs()), "its errback ran"
        )

    return [
        gives(add.s(2).apply_async((4,), **LATER), 6),
        gives(add.si(2, 2).apply_async(**LATER), 4),
        gives((add.s(2, 2) | add.s(4)).apply_async(**LATER), 8),
        gives(add.signature((3, 3), options=LATER).clone().apply_async(), 6),
        parents,
        group_result,
        gives(skewed, [0, 2, 4]),
        gives(chord([add.s(i, i).set(**LATER) for i in range(3)], total.s().set(**LATER), app=app).apply_async(), 6),
        broken_chord,
        gives(total.map([[1, 2], [3]]).apply_async(**LATER), [3, 3]),
        gives(add.starmap([(2, 2), (4, 4)]).apply_async(**LATER), [4, 8]),
        gives(add.chunks([(i, i) for i in range(4)], 2).apply_async(**LATER), [[0, 2], [4, 6]]),
    ]


def larger_canvas(stage: Stage, app: Any, tasks: SimpleNamespace) -> list[Check]:
    """Nested canvas: a group in a chain becomes a chord, chains in groups, `replace`, callbacks of canvas, stamps."""
    add, total = tasks.add, tasks.total
    stamped = tasks.facts.si("stamped")
    stamped.stamp(**{"who": "me"})
    seen = stamped.apply_async(**LATER)

    def stamps() -> None:
        assert seen.get(timeout=LONG_S)["stamps"] == {"who": "me"}

    upgraded = chain(add.si(1, 1).set(**LATER), group(add.s(i).set(**LATER) for i in (10, 20)), total.s())
    nested = group(chain(add.s(i, 1).set(**LATER), add.s(1).set(**LATER)) for i in range(2))
    called_back = chain(add.s(1, 2), add.s(3)).set(**LATER)
    called_back.link(add.s(1000))
    return [
        gives(upgraded.apply_async(), 34),
        gives(nested.apply_async(), [2, 3]),
        gives(called_back.apply_async(), 6),
        ran(stage, "add 6 1000"),
        gives(tasks.swap.apply_async((40,), **LATER), 41),
        gives(chain(group(add.si(i, 0) for i in range(2)), total.s(), add.s(5)).apply_async(**LATER), 6),
        stamps,
    ]


def controlling(stage: Stage, app: Any, tasks: SimpleNamespace) -> list[Check]:
    """The guide's "Workers": revoke (id, group, stamps, terminate), rate limits, queues, time limits, inspect."""
    note, control = tasks.note, app.control
    inspect = control.inspect(timeout=30, limit=1)
    far = {"countdown": 600}
    single, first, second = (note.apply_async((f"revoked {i}",), **far) for i in range(3))
    many = group(note.s("revoked 3"), note.s("revoked 4")).apply_async(**far)
    waiting = note.apply_async(("waiting",), **far)
    header = [tasks.add.s(1, 1).set(**LATER), tasks.add.s(500, 1).set(**far)]
    lamed = chord(header, tasks.total.s().on_error(tasks.report.s()), app=app).apply_async()
    held_stamped = note.si("revoked by stamp")
    held_stamped.stamp(tenant="leaving")
    leaving = held_stamped.apply_async(**far)
    stamped = note.si("stamped away")
    stamped.stamp(tenant="gone")
    control.revoke_by_stamped_headers({"tenant": ["gone"]}, reply=True, timeout=30, limit=1)
    dropped = stamped.apply_async(countdown=2)
    napping = tasks.nap.apply_async(("terminated",), **LATER)
    control.rate_limit("progress", "4/s", reply=True, timeout=30, limit=1)
    limited_from_s = time.time() + 1
    limited = [tasks.progress.apply_async(("many",), **LATER) for _ in range(6)]
    control.add_consumer("added", reply=True, timeout=30, limit=1)
    added = note.apply_async(("added",), queue="added", **LATER)

    def revoked() -> None:
        control.revoke(single.id)
        control.revoke([first.id, second.id])
        many.revoke()
        control.revoke_by_stamped_headers({"tenant": ["leaving"]})
        for result in (single, first, second, leaving, *many.results):
            ended(result, "REVOKED")()
        assert [run for run in stage.runs() if run.name.startswith("revoked")] == []

    def chord_without_a_part() -> None:
        control.revoke(lamed.parent.results[1].id)
        ended(lamed, "FAILURE")()
        assert isinstance(lamed.result, ChordError)
        assert not [run for run in stage.runs() if run.name == "add 500 1"]

    def inspected() -> None:
        (scheduled,) = inspect.scheduled().values()
        assert waiting.id in [row["request"]["id"] for row in scheduled]
        (queried,) = inspect.query_task(waiting.id, "no such task").values()
        assert {task_id: row[0] for task_id, row in queried.items()} == {waiting.id: "scheduled"}
        assert queried[waiting.id][1]["name"] == "note"
        for command in ("active", "reserved", "revoked", "registered", "active_queues", "stats", "conf", "ping"):
            (answer,) = getattr(inspect, command)().values()
            assert answer is not None
        (stats,) = inspect.stats().values()
        assert stats["wheel_collector"]["frozen_objects"] > 10_000, "full collections do not look at the worker itself"
        (queues,) = inspect.active_queues().values()
        assert {"celery", "added"} <= {queue["name"] for queue in queues}

    def terminated() -> None:
        ran(stage, "terminated")()
        control.revoke(napping.id, terminate=True)
        ended(napping, "REVOKED")()

    def rate_limited() -> None:
        for result in limited:
            result.get(timeout=LONG_S)
        at_s = sorted(run.at_s for run in stage.runs() if run.name == "many PROGRESS")
        assert at_s[-1] >= limited_from_s + 5 / 4 - 0.01, "the sixth at four a second"

    def consumer_cancelled() -> None:
        gives(added, "added")()
        before = consumed(inspect)
        assert "added" in before
        control.cancel_consumer("added", reply=True, timeout=30, limit=1)
        # The worker replies first, and cancels when the next turn of its loop begins (`Consumer.call_soon`). Later in
        # that turn, at the earliest, it gives this task to the pool. So when the task has run, it has cancelled.
        gives(note.apply_async(("sent after the cancel",)), "sent after the cancel")()
        assert consumed(inspect) == before - {"added"}

    return [
        inspected,
        revoked,
        chord_without_a_part,
        terminated,
        ended(dropped, "REVOKED"),
        rate_limited,
        consumer_cancelled,
    ]

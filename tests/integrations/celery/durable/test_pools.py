"""The usual life of an app, with each ETA in the store, in each of Celery's pools.

One worker for each pool gets all tasks at once. Then the checks read the results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from celery import chain, chord, group
from celery.result import GroupResult

if TYPE_CHECKING:
    from conftest import Run, Stage

pytestmark = [pytest.mark.proof, pytest.mark.real, pytest.mark.timeout(150)]

POOLS = ["prefork", "threads", "solo", "gevent", "eventlet"]
HELD = [f"held {i}" for i in range(20)]
FOREIGN = [f"foreign {i}" for i in range(20)]
LONG_S = 100.0  # for results: generous, the machine is shared


class Ended(NamedTuple):
    """How a task ended. Unlike a result object it asks no server, so it can be read when the server is gone."""

    id: str
    state: str
    result: Any


class Life(NamedTuple):
    """The tasks sent to one worker, and their results."""

    results: dict[str, Ended]
    later_id: str
    runs: list[Run]
    scheduled: list[dict[str, Any]]
    stats: dict[str, Any]

    def named(self, name: str) -> list[Run]:
        return [run for run in self.runs if run.name == name]


@pytest.mark.parametrize("pool", POOLS)
def test_the_usual_life_of_an_app_is_as_in_stock(stage: Stage, pool: str) -> None:
    """One test for each pool checks all features, because workers start slowly."""
    life = live(stage, pool)
    every_task_ran_once_and_none_early(life)
    retries_waited_in_the_store_and_kept_their_count(life)
    chains_groups_chords_links_and_replace_gave_what_stock_gives(life)
    the_revoked_task_is_gone_and_the_expired_one_never_ran(life)
    inspect_scheduled_showed_held_tasks_in_stock_shape(life)
    the_dispatcher_of_the_worker_reported_its_state(life)


def live(stage: Stage, pool: str) -> Life:
    """Send all tasks of the test to one worker. Wait until they have ended, except the task `later`."""
    stage.worker(pool=pool).wait_ready()
    app, results = stage.app, {}

    def task(name: str, *arguments: Any, **options: Any) -> Any:
        return app.signature(name, args=arguments, options=options, immutable=options.pop("immutable", False), app=app)

    def send(name: str, *arguments: Any, **options: Any) -> Any:
        return app.send_task(name, arguments, **options)

    for i, name in enumerate(HELD):
        send("note", name, countdown=3 + i * 0.02)
    for i, name in enumerate(FOREIGN):
        stage.stock.send_task("note", (name,), countdown=4 + i * 0.02)
    results["at once"] = send("note", "at once")
    results["soon"] = send("note", "soon", countdown=0.5)
    results["again"] = send("again", "again", 3, 1)
    results["auto"] = send("auto", "auto")
    results["chain"] = chain(task("add", 1, 2), task("add", 3, countdown=3)).apply_async()
    results["group"] = group(task("add", i, i, countdown=3) for i in range(3)).apply_async()
    results["chord"] = chord(
        [task("add", i, 10, countdown=3) for i in range(3)], task("total", countdown=3), app=app
    ).apply_async()
    results["swap"] = send("swap", 40)
    results["link"] = send("add", 5, 5, countdown=3, link=task("add", 100))
    results["expired"] = send("note", "expired", countdown=3.5, expires=3.2)
    results["revoked"] = send("note", "revoked", countdown=60)
    results["later"] = send("note", "later", countdown=600)
    app.control.revoke(results["revoked"].id)
    scheduled: list[dict[str, Any]] = []

    def is_gone() -> bool:
        (scheduled[:],) = app.control.inspect(timeout=30, limit=1).scheduled().values()
        return results["revoked"].id not in [row["request"]["id"] for row in scheduled]

    stage.wait_until(is_gone, "a thread of the worker took the revoked task out")
    for name in ("at once", "soon", "again", "chain", "group", "chord", "swap", "link"):
        results[name].get(timeout=LONG_S)
    for name in ("auto", "expired", "revoked"):
        results[name].get(timeout=LONG_S, propagate=False)
    runs = stage.wait_runs(len(HELD) + len(FOREIGN) + 18)
    (stats,) = app.control.inspect(timeout=30, limit=1)._request("wheel_stats").values()
    ended = {
        name: Ended(result.id, _state(result), result.get(timeout=30, propagate=False))
        for name, result in results.items()
        if name != "later"
    }
    return Life(ended, results["later"].id, runs, scheduled, stats)


def _state(result: Any) -> str:
    return "SUCCESS" if isinstance(result, GroupResult) else str(result.state)


def every_task_ran_once_and_none_early(life: Life) -> None:
    """The tasks come from a producer with the integration and from one with stock Celery, and are due beyond the
    horizon or within it."""
    names = [run.name for run in life.runs]
    for name in [*HELD, *FOREIGN, "at once", "soon"]:
        assert names.count(name) == 1, name
    assert [run for run in life.runs if run.eta_s is not None and run.at_s < run.eta_s] == []


def retries_waited_in_the_store_and_kept_their_count(life: Life) -> None:
    """The tasks send their retries from the pool, by `retry(countdown=)` and by `autoretry_for`."""
    for name in ("again", "auto"):
        first, second = life.named(name)
        assert (first.retries, second.retries) == (0, 1)
        assert second.at_s - first.at_s >= 3
    assert life.results["auto"].state == "FAILURE"


def chains_groups_chords_links_and_replace_gave_what_stock_gives(life: Life) -> None:
    """Each of these canvases has a task with a countdown inside."""
    results = life.results
    assert results["chain"].result == 6
    assert results["group"].result == [0, 2, 4]
    assert results["chord"].result == 33
    assert results["swap"].result == 41
    assert results["link"].result == 10
    assert len(life.named("add 10 100")) == 1


def the_revoked_task_is_gone_and_the_expired_one_never_ran(life: Life) -> None:
    """The revoked task leaves the store at once. Both tasks end as REVOKED."""
    assert life.named("revoked") == life.named("expired") == []
    assert (life.results["revoked"].state, life.results["expired"].state) == ("REVOKED", "REVOKED")
    assert life.results["revoked"].id not in [row["request"]["id"] for row in life.scheduled]


def inspect_scheduled_showed_held_tasks_in_stock_shape(life: Life) -> None:
    """The row of a held task in `inspect scheduled` has the same keys as a row of stock Celery."""
    (row,) = [row for row in life.scheduled if row["request"]["id"] == life.later_id]
    assert set(row) == {"eta", "priority", "request"}
    assert set(row["request"]) == {
        "id", "name", "args", "kwargs", "type", "hostname", "time_start", "acknowledged", "delivery_info", "worker_pid"
    }  # fmt: skip
    assert (row["request"]["name"], row["request"]["args"]) == ("note", ["later"])
    assert set(row["request"]["delivery_info"]) == {"exchange", "routing_key", "priority", "redelivered"}


def the_dispatcher_of_the_worker_reported_its_state(life: Life) -> None:
    """Broker and store are one server, which itself moves due tasks to their queues (mode "push"). Only the task due in
    ten minutes is still held."""
    dispatcher = life.stats["dispatcher"]
    assert (dispatcher["state"], dispatcher["mode"], dispatcher["failed"]) == ("running", "push", 0)
    assert life.stats["held"] == {"celery": 1}
    assert dispatcher["published"] >= len(HELD) + len(FOREIGN)

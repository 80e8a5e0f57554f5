"""At most once: an occurrence leaves the store before it is handed out, so a crash loses it instead of doubling it.

So that it counts for `max_instances` all the same, a mark stands in the store for as long as it runs, see `marks`.
What the driver gives back all the same (a pause, no room in an executor) is put into the store again, as an occurrence
of its own, see `flights`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from wheel_sched.errors import StoreError
from wheel_sched_apscheduler.occurrence import Fire
from wheel_sched_apscheduler.run_times import missed_runs
from wheel_sched_apscheduler.stores.max_instances import Reached

if TYPE_CHECKING:
    from wheel_sched_apscheduler.stores.redis import RedisWheelJobStore

ROUNDS = 4  # one; more when a job was changed between its claim and this


def settled_first(home: RedisWheelJobStore, fires: Sequence[Fire], now: datetime) -> list[Fire]:
    """Those of the claimed `fires` that may be handed out: they have left the store. Those whose executor is unknown
    are still in it, for the driver to quarantine. Under the store's lock."""
    executors = getattr(home._scheduler, "_executors", None)
    flights = home._flights
    leaving, staying = [], []
    for fire in fires:
        if executors is not None and fire.job.executor not in executors:
            staying.append(fire)
            continue
        run_times, following = fire.run_times or getattr(fire.job, "fixed", None), None
        try:
            if not run_times:
                run_times, following = missed_runs(fire.job, now)
        except Exception as error:
            home._trigger_failed(fire, error)
            continue
        fire.run_at(run_times)
        if not home.driven:
            fire.job.fixed = run_times
        fire.plan(following)
        fire.ticket.running = fire.ticket.running or home._counts_all
        flights.end(fire)
        leaving.append(fire)
    # one for which there is no room does not run
    counted = [fire for fire in leaving if home._counts_all and not isinstance(fire.job.max_instances, Reached)]
    marked = home._marks.begin(counted, home.store_now_ms())
    try:
        for _ in range(ROUNDS):
            parcels, marked = marked + flights.gather(home.store_now_ms()), []
            home._send(parcels, [])
            if not flights.waiting:
                break
    except StoreError as error:
        home._failed(now, error)
    left = []
    for fire in leaving:
        if flights.flying.get(fire.ticket.item_id) is fire:
            home._marks.end(fire)
        else:
            fire.ticket.gone = True
            left.append(fire)
    return staying + left

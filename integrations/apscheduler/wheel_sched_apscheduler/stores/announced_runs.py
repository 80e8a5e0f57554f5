"""Which process has claimed which run, as far as the processes have announced it.

A process lists up to 500 runs of more than half a second in an item, see `run_records`. The functions only read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from wheel_sched.store import DelayStore, Found
from wheel_sched_apscheduler.entries import InFlightRun
from wheel_sched_apscheduler.stores.layout import OCCURRENCE, WORKERS, job_id_of


def announced_workers(store: DelayStore) -> tuple[list[dict[str, Any]], list[str]]:
    """The processes that have announced runs, and the ids of the items of processes that have ended."""
    records, ended = [], []
    for found in store.get(store.find(WORKERS)):
        if found is None:
            continue
        try:
            record = json.loads(found.body)
            alive = store.now_ms() - record["seen_ms"] < 3 * record["lease_ms"]
        except (ValueError, KeyError, TypeError):
            alive, record = False, {}
        if alive:
            records.append(record)
        else:
            ended.append(found.id)
    return records, ended


class AnnouncedRuns:
    """The announced runs by job and occurrence.

    Args:
        workers: the records of the processes, see `announced_workers`.
    """

    def __init__(self, workers: Iterable[Mapping[str, Any]]) -> None:
        self._rows: dict[tuple[str, str | None], tuple[str, list[Any]]] = {}
        for worker in workers:
            rows = worker.get("occurrences")
            for row in rows if isinstance(rows, list) else ():
                if isinstance(row, list) and [type(part) for part in row] == [str, str, int, int]:
                    self._rows[row[1], row[0]] = self._rows[row[1], None] = (str(worker.get("owner")), row)

    def run_of(self, found: Found) -> InFlightRun:
        """The run in an item: a job in flight, or a split item."""
        job_id, occurrence_id = job_id_of(found.id), None
        if found.topic == OCCURRENCE:
            occurrence_id = f"{job_id}:{found.id.partition(chr(0))[0]}"
        owner, row = self._rows.get((job_id, occurrence_id), (None, None))
        if row is None:
            return InFlightRun(job_id, occurrence_id, found.score_ms, None, None)
        return InFlightRun(job_id, row[0], found.score_ms, owner, row[2], row[3])

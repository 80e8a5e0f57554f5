"""Epoch marks are committed offsets that show which parts of a Spark epoch were written and are not written again."""

from __future__ import annotations

from typing import Any

import pytest

from retry_topic.spark.kafka.marks import Part, close_epoch, mark_of, note_epoch, rows_written
from wheel_sched.errors import Rejected


class Cluster:
    """A stand-in for `Groups`: the committed offsets of each group."""

    def __init__(self) -> None:
        self.groups: dict[str, list[Any]] = {}

    def places(self, group: str, places: list[Any]) -> list[Any]:
        return self.groups.get(group, [])

    def put(self, group: str, places: list[Any]) -> None:
        self.groups[group] = places


def written(cluster: Any, part: Part, rows: int) -> None:
    """Commit a part's mark, as the part's transaction does."""
    cluster.put(part.name, [mark_of(part, rows)])


def test_a_part_is_known_by_the_mark_that_came_with_its_rows() -> None:
    """A part that has a mark of this epoch is not written again. A part with an older mark is written."""
    cluster: Any = Cluster()
    assert not note_epoch(cluster, Part("query-a", 0, 1), in_doubt=False)
    assert rows_written(cluster, Part("query-a", 0, 1)) is None
    written(cluster, Part("query-a", 0, 1), 70)
    assert rows_written(cluster, Part("query-a", 0, 1)) == 70
    assert rows_written(cluster, Part("query-a", 0, 0)) is None
    assert not note_epoch(cluster, Part("query-a", 1, 1), in_doubt=False)
    assert rows_written(cluster, Part("query-a", 1, 1)) is None


def test_an_epoch_that_is_done_stays_done_however_it_is_cut() -> None:
    """After an epoch is closed, none of its parts is written, even if it has no mark."""
    cluster: Any = Cluster()
    assert not note_epoch(cluster, Part("job-a", 0, 0), in_doubt=False)
    close_epoch(cluster, "job-a", 0)
    assert note_epoch(cluster, Part("job-a", 0, 7), in_doubt=False)
    assert not note_epoch(cluster, Part("job-a", 1, 0), in_doubt=False)


def test_a_zombie_of_an_epoch_that_is_over_is_refused() -> None:
    """A writer of an old epoch is refused if the mark of its job or of its part shows a later epoch."""
    cluster: Any = Cluster()
    note_epoch(cluster, Part("query-a", 4, 0), in_doubt=True)
    with pytest.raises(Rejected, match="is over"):
        note_epoch(cluster, Part("query-a", 3, 0), in_doubt=False)
    written(cluster, Part("query-a", 4, 0), 1)
    with pytest.raises(Rejected, match="is over"):
        rows_written(cluster, Part("query-a", 3, 0))


def test_what_the_cluster_has_forgotten_is_in_doubt() -> None:
    """If a job has no mark, its epochs after 0 are refused. With `in_doubt=True` they are written."""
    cluster: Any = Cluster()
    with pytest.raises(Rejected, match="in_doubt"):
        note_epoch(cluster, Part("query-a", 3, 0), in_doubt=False)
    assert not note_epoch(cluster, Part("query-a", 3, 0), in_doubt=True)
    assert not note_epoch(cluster, Part("query-a", 3, 1), in_doubt=False)


def test_a_job_may_be_called_as_another_ones_part() -> None:
    """If a job has the same name as another job's part, their marks are still separate."""
    cluster: Any = Cluster()
    note_epoch(cluster, Part("job-a-1", 0, 0), in_doubt=False)
    close_epoch(cluster, "job-a-1", 0)
    assert rows_written(cluster, Part("job-a", 0, 1)) is None

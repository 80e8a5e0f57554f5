"""The benchmark of the jobs measures each job and the bare query that it is compared with."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.narration import Narration
from benchmarks.spark import Sizes, job_seconds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


def test_each_job_and_each_bare_query_has_a_time_for_every_round(spark: SparkSession, tmp_path: Path) -> None:
    """A benchmark of two rounds has two times for each job and each bare query, all above 0."""
    found = job_seconds(spark, tmp_path, Sizes(attempts=1_000, job_rounds=2), Narration(10, io.StringIO()))
    assert sorted(found) == ["backtest", "dlq", "history", "letters", "slo"]
    assert [len(times) for times in found.values()] == [2] * 5
    assert min(min(times) for times in found.values()) > 0

"""The demo: its numbers, its input, and a small run from start to end."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from retry_topic.demo.failure_profile import Answer, failure_profile_of
from retry_topic.demo.records import DEFAULT_COUNT, load_records
from retry_topic.demo.report import DemoReport, as_text, percentiles
from retry_topic.demo.run import run
from wheel_sched.errors import ConfigError


def test_the_records_are_real_and_many() -> None:
    """The default records are at least 2,000 airports, each with its own id."""
    records = load_records(None, None)
    assert len(records) == DEFAULT_COUNT >= 2_000
    assert len({record_id for record_id, _ in records}) == len(records)
    assert b'"country"' in records[0][1]


def test_every_kind_of_failure_occurs() -> None:
    """Each kind of answer of the demo's endpoint occurs for the default records, in about the documented share."""
    answers = Counter(failure_profile_of(record_id).answer for record_id, _ in load_records(None, None))
    assert set(answers) == set(Answer)
    assert 0.66 < answers[Answer.FINE] / DEFAULT_COUNT < 0.74
    assert answers[Answer.GONE] >= 20


def test_a_bad_input_file_names_its_lines(tmp_path: Path) -> None:
    """For a bad input file, the error names each line that is not a JSON object."""
    path = tmp_path / "events.jsonl"
    path.write_text('{"a": 1}\nnot json\n[1]\n')
    with pytest.raises(ConfigError) as caught:
        load_records(str(path), None)
    assert [":2:" in p or ":3:" in p for p in caught.value.problems] == [True, True]


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_an_empty_input_file_is_refused(tmp_path: Path, text: str) -> None:
    """An input file without records is an error."""
    path = tmp_path / "events.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match="holds no records"):
        load_records(str(path), None)


def test_a_missing_input_file_is_refused(tmp_path: Path) -> None:
    """If the input file is missing, the error has the name of the file."""
    with pytest.raises(ConfigError, match=r"gone\.jsonl"):
        load_records(str(tmp_path / "gone.jsonl"), None)


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    """The demo deletes only what a demo has made. For any other folder that is not empty it raises an error."""
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigError, match=r"which has other files; nothing was deleted or started"):
        run(count=1, folder=tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize(
    "wrong", [{"early": 1}, {"lost": 1, "delivered": 9}, {"delivered": 9}], ids=["early", "lost", "missing"]
)
def test_the_report_can_fail(wrong: dict[str, int]) -> None:
    """One early, lost or missing record makes the report say that not every record was accounted for."""
    report = DemoReport(**{"records": 10, "delivered": 8, "dead": {"gone": 2}, "lateness_ms": percentiles([])})
    assert report.accounted
    for name, value in wrong.items():
        setattr(report, name, value if name != "delivered" else value - 2)
    assert not report.accounted
    assert "NOT every record" in as_text(report, "embedded:x")


def test_percentiles_are_those_of_the_values() -> None:
    """`percentiles` returns p50, p99 and max of a hundred values correctly."""
    assert percentiles(list(range(100))) == {"p50": 50, "p99": 99, "max": 99}


@pytest.mark.proof
@pytest.mark.real
@pytest.mark.slow
def test_a_small_run_accounts_for_every_record(tmp_path: Path) -> None:
    """Five processes run, and one is killed half-way. No record is early, lost or missing from the counts."""
    report = run(count=300, folder=tmp_path / "demo")
    assert report.accounted
    assert report.takeover_ms is not None  # the first service was killed
    assert report.delivered + sum(report.dead.values()) == 300
    assert report.early == report.lost == 0
    assert set(report.delivered_by_attempt) >= {"1", "2"}

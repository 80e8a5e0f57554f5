"""The history of a benchmark's ratios: what a run adds to it, which ratios it calls worse, and what it refuses.

A run is unfit if the machine was too busy to measure; see `benchmarks.fitness`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as command
from benchmarks import fitness, history, purgatory
from benchmarks.figures import Figure
from benchmarks.fitness import Fitness
from benchmarks.history import DamagedHistoryError, RecordedRun, append, losses, read, run_of

RATE = Figure("ours_vs_bare", "x", "a ratio of rates", at_least=0.7)
COST = Figure("cost", "ms", "a cost as a multiple of its baseline", at_most=3, baseline="bare", in_baselines=True)
COUNT = Figure("lost", "messages", "a count", at_most=0)
CONTEXT = Figure("other_vs_bare", "x", "a ratio without a gate")
FIGURES = (RATE, COST, COUNT, CONTEXT)

FIT: dict[str, Any] = {"before": {}, "after": {}, "unfit": []}
UNFIT: dict[str, Any] = {**FIT, "unfit": ["before the run a sleeping thread woke 9.5 ms late"]}


def run(rate: float = 1.0, cost: float = 1.0, **changed: Any) -> RecordedRun:
    made = RecordedRun("2026-01-01T00:00:00+00:00", "abc", "store", "a machine", FIT, {RATE.key: rate, COST.key: cost})
    return replace(made, **changed)


def worse(earlier: Sequence[RecordedRun], last: RecordedRun) -> list[str]:
    return [loss.key for loss in losses(FIGURES, earlier, last)]


def test_a_run_records_gated_ratios_only() -> None:
    """The record of a run has the ratios with a gate. For a gated multiple of a baseline, it has value / baseline."""
    result = {"ours_vs_bare": 0.8, "cost": 3.0, "bare": 2.0, "lost": 0, "other_vs_bare": 5.0}
    recorded = run_of("store", FIGURES, {**result, "quick": True, "fitness": FIT})
    assert recorded.ratios == {"ours_vs_bare": 0.8, "cost": 1.5}
    assert (recorded.benchmark, recorded.fitness) == ("store, quick", FIT)
    assert recorded.date.endswith("+00:00")
    assert recorded.machine == history.machine()


@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
def test_a_ratio_that_is_no_number_is_left_out(value: float | None) -> None:
    """A ratio that was not measured, is no number, or has a baseline of 0 is not recorded."""
    result = {"ours_vs_bare": value, "cost": 3.0, "bare": 0, "quick": False, "fitness": FIT}
    assert run_of("store", FIGURES, result).ratios == {}


def test_a_better_run_is_not_worse() -> None:
    """A greater rate and a smaller cost are no losses, however much they differ."""
    assert worse([run()] * 5, run(rate=2.0, cost=0.1)) == []


def test_a_ratio_that_is_worse_once_is_not_worse() -> None:
    """A ratio that is bad in one run only is no loss, even if another ratio was bad in the run before."""
    assert worse([run()] * 5, run(rate=0.5)) == []
    assert worse([*[run()] * 4, run(cost=2.0)], run(rate=0.5)) == []
    assert worse([*[run()] * 4, run(rate=0.5)], run()) == []


def test_a_ratio_that_is_worse_twice_is_worse() -> None:
    """A loss that repeats is named with the usual value and both values. The gate decides which direction is worse."""
    earlier = [run(), run(), run(), run(rate=0.5, cost=0.5)]
    (loss,) = losses(FIGURES, earlier, run(rate=0.6, cost=0.5))
    assert (loss.key, loss.usual, loss.previous, loss.here) == ("ours_vs_bare", 1.0, 0.5, 0.6)
    assert str(loss) == "ours_vs_bare: 0.6 after 0.5, both more than 10 % worse than the usual 1"
    assert worse([run(), run(), run(), run(cost=1.2)], run(cost=1.15)) == ["cost"]


def test_a_loss_of_a_tenth_is_allowed() -> None:
    """A ratio may be worse by 10 % of the usual value, and not by more."""
    assert worse([run(), run(), run(), run(cost=2.0)], run(cost=1.099)) == []
    assert worse([run(), run(), run(), run(cost=2.0)], run(cost=1.101)) == ["cost"]


def test_a_ratio_that_is_uneven_may_be_worse_by_more() -> None:
    """Four times the median deviation of the recent runs is allowed, if this is more than 10 %."""
    uneven = [run(cost=0.9), run(cost=1.0), run(cost=1.1), run(cost=1.1), run(cost=0.9)]
    assert worse([*uneven, run(cost=1.39)], run(cost=1.39)) == []
    assert worse([*uneven, run(cost=1.41)], run(cost=1.41)) == ["cost"]
    (loss,) = losses(FIGURES, [*uneven, run(cost=2.0)], run(cost=2.0))
    assert loss.allowed_percent == pytest.approx(40)
    assert worse([run(cost=3.0), *[run()] * 4, run(cost=1.11)], run(cost=1.11)) == ["cost"]


def test_a_suspect_is_worse_in_one_run() -> None:
    """A run that is worse than usual is a suspect, and a loss only if the run before it was worse too."""
    earlier = [run()] * 4
    assert history.suspects(FIGURES, earlier, run(rate=0.5)) == ["ours_vs_bare"]
    assert history.suspects(FIGURES, earlier, run(rate=0.95)) == []
    assert history.suspects(FIGURES, earlier, run(rate=0.5, fitness=UNFIT)) == []
    assert history.suspects(FIGURES, earlier[:2], run(rate=0.5)) == []


def test_a_loss_of_a_ratio_near_zero_is_measured_by_the_gate() -> None:
    """A cost that grows from 0 to less than a hundredth of its gate is not worse; one that grows beyond it is."""
    earlier = [run(cost=0.0)] * 5
    assert worse([*earlier, run(cost=0.02)], run(cost=0.02)) == []
    assert worse([*earlier, run(cost=0.04)], run(cost=0.04)) == ["cost"]


def test_the_usual_value_is_the_median_of_the_recent_runs() -> None:
    """The usual value comes from the last ten runs before the two judged runs. Older runs do not count."""
    old, recent = [run(rate=9.0)] * 30, [run(rate=1.0)] * history.RECENT
    assert worse([*old, *recent, run(rate=0.95)], run(rate=0.95)) == []
    assert worse([*old, *recent, run(rate=0.8)], run(rate=0.8)) == ["ours_vs_bare"]


def test_too_few_runs_call_nothing_worse() -> None:
    """Without three fit runs before the last two there is no usual value."""
    bad = run(rate=0.1)
    assert worse([], bad) == []
    assert worse([run(), run(), bad], bad) == []
    assert worse([run(), run(), run(), bad], bad) == ["ours_vs_bare"]


def test_unfit_runs_are_neither_judged_nor_compared_with() -> None:
    """No ratio of an unfit run is called worse. An unfit run is neither a previous run nor part of the usual value."""
    bad, unfit_bad = run(rate=0.1), run(rate=0.1, fitness=UNFIT)
    assert worse([run(), run(), run(), bad], unfit_bad) == []
    assert worse([run(), run(), run(), unfit_bad], bad) == []
    assert worse([run(), run(), run(), bad, unfit_bad], bad) == ["ours_vs_bare"]
    assert worse([*[unfit_bad] * 9, run(), run(), run(), bad], bad) == ["ours_vs_bare"]


@pytest.mark.parametrize("other", [{"machine": "another"}, {"benchmark": "store, quick"}])
def test_only_runs_of_the_same_kind_are_compared(other: dict[str, str]) -> None:
    """Runs on another machine, or of the same benchmark with quick sizes, are not compared."""
    bad = run(rate=0.1)
    assert worse([run(**other), run(**other), run(**other), bad], bad) == []
    assert worse([run(), run(), run(), bad, run(**other)], bad) == ["ours_vs_bare"]


def test_a_figure_that_older_runs_do_not_have_is_not_judged() -> None:
    """A new figure is judged only when enough earlier runs have it."""
    without = run(ratios={COST.key: 1.0})
    assert worse([without, without, run(), run(rate=0.1)], run(rate=0.1)) == []


def test_the_history_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    """An absent file and an empty file are empty histories. Runs, unfit ones too, are read in the order of adding."""
    file = tmp_path / "history.jsonl"
    assert read(file) == []
    file.touch()
    assert read(file) == []
    runs = [run(rate=1.0), run(rate=2.0, fitness=UNFIT), run(rate=3.0)]
    for one in runs:
        append(file, one)
    assert read(file) == runs
    assert file.read_text("utf-8").count("\n") == 3
    assert set(json.loads(file.read_text("utf-8").splitlines()[0])) == set(asdict(run()))


def test_a_run_is_not_added_to_the_last_line_when_that_has_no_end(tmp_path: Path) -> None:
    """If the file does not end with a line break, the new run still gets a line of its own."""
    file = tmp_path / "history.jsonl"
    file.write_text(json.dumps(asdict(run(rate=1.0))), "utf-8")
    append(file, run(rate=2.0))
    assert [one.ratios[RATE.key] for one in read(file)] == [1.0, 2.0]


DAMAGED = {
    "cut off": json.dumps(asdict(run()))[:-9],
    "not JSON": "hello",
    "not an object": "5",
    "a field is missing": json.dumps({"date": "2026-01-01"}),
    "an unknown field": json.dumps({**asdict(run()), "more": 1}),
    "a date that is no text": json.dumps(asdict(run(date=5))),
    "no fitness": json.dumps(asdict(run(fitness={}))),
    "a ratio that is no number": json.dumps(asdict(run(ratios={"ours_vs_bare": "fast"}))),
    "a ratio that is infinite": json.dumps(asdict(run(ratios={"ours_vs_bare": float("inf")}))),
    "not UTF-8": "\udcff",
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_line_is_named(damage: str, tmp_path: Path) -> None:
    """The error names the file and the line, and the file stays as it is."""
    file = tmp_path / "history.jsonl"
    append(file, run())
    with file.open("ab") as damaged:
        damaged.write(damage.encode("utf-8", "surrogateescape") + b"\n")
    append(file, run())
    before = file.read_bytes()
    with pytest.raises(DamagedHistoryError, match=r"history\.jsonl, line 2, is not the record of a run"):
        read(file)
    assert file.read_bytes() == before


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The result that the benchmark `purgatory` gives in this test: it keeps all gates, on a fit machine.

    The test may change the result.
    """
    result: dict[str, Any] = {"python": "3", "core": "pure", "cpus": 2, "rounds": 3, "points": []}
    result |= {figure.key: 1 for figure in purgatory.FIGURES} | {"new_vs_old_low": 5.0, "new_vs_old_high": 5.0}
    monkeypatch.setattr(purgatory, "run", lambda _: dict(result))
    monkeypatch.setattr(fitness, "measure", lambda: Fitness(0.2, 1.0, 5.0))
    return result


def test_the_command_fails_when_a_ratio_is_worse_again(
    measured: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bad run with `--check --history` is repeated at once. If it is bad again, the command exits with 4 and names
    the figure. Each measurement adds a line.

    Without `--check` nothing is repeated, the figure is named, and the exit code is 0.
    """
    file = tmp_path / "history.jsonl"
    arguments = ["purgatory", "--json", "--check", "--history", str(file)]
    assert [command.main(arguments) for _ in range(4)] == [0] * 4
    assert capsys.readouterr().err.count('no ratio can be "worse again" yet') == 4
    measured["new_vs_old_low"] = 4.0
    assert command.main(arguments) == 4
    said = capsys.readouterr().err
    assert "worse in this run: new_vs_old_low; measuring once more" in said
    assert "worse again: new_vs_old_low: 4 after 4" in said
    assert len(read(file)) == 6
    assert command.main(arguments[:2] + arguments[3:]) == 0  # without --check it is named only
    assert "worse again: new_vs_old_low" in capsys.readouterr().err
    assert len(read(file)) == 7


def test_the_command_passes_when_a_bad_run_is_not_repeated(
    measured: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ratio that is bad in one measurement and usual in the next is no loss."""
    file = tmp_path / "history.jsonl"
    arguments = ["purgatory", "--json", "--check", "--history", str(file)]
    assert [command.main(arguments) for _ in range(4)] == [0] * 4
    answers = iter([{**measured, "new_vs_old_low": 4.0}, dict(measured)])
    monkeypatch.setattr(purgatory, "run", lambda _: next(answers))
    assert command.main(arguments) == 0
    assert [one.ratios["new_vs_old_low"] for one in read(file)[-2:]] == [4.0, measured["new_vs_old_low"]]


def test_a_missed_gate_comes_before_a_loss(measured: dict[str, Any], tmp_path: Path) -> None:
    """A ratio is worse twice and also misses its gate: the exit code is 1, the code of a missed gate."""
    arguments = ["purgatory", "--json", "--check", "--history", str(tmp_path / "history.jsonl")]
    assert [command.main(arguments) for _ in range(4)] == [0] * 4
    measured["new_vs_old_low"] = 2.0
    assert [command.main(arguments) for _ in range(2)] == [1, 1]


def test_only_losses_are_judged_on_request(measured: dict[str, Any], tmp_path: Path) -> None:
    """With `--check losses`, a ratio that also misses its gate counts as a loss when it is worse twice."""
    arguments = ["purgatory", "--json", "--check", "losses", "--history", str(tmp_path / "history.jsonl")]
    assert [command.main(arguments) for _ in range(4)] == [0] * 4
    measured["new_vs_old_low"] = 2.0
    assert command.main(arguments) == 4


def test_an_unfit_run_is_recorded_as_unfit(
    measured: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine is too busy to measure. The run still adds a line to the history, which is marked as unfit.

    With `--check`, the command exits with 3, however bad the ratios are.
    """
    file = tmp_path / "history.jsonl"
    arguments = ["purgatory", "--json", "--check", "--history", str(file)]
    for _ in range(4):
        command.main(arguments)
    measured["new_vs_old_low"] = 1.0
    monkeypatch.setattr(fitness, "measure", lambda: Fitness(9.5, 1.0, 5.0))
    assert [command.main(arguments) for _ in range(2)] == [3, 3]
    assert [one.fit for one in read(file)] == [True] * 4 + [False] * 2


def test_nothing_is_measured_when_the_history_is_damaged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command exits with 2 before it measures, and changes nothing. It does the same if it cannot open the file."""
    monkeypatch.setattr(purgatory, "run", lambda _: pytest.fail("it was measured"))
    file = tmp_path / "history.jsonl"
    file.write_text("{}\n", "utf-8")
    assert command.main(["purgatory", "--history", str(file)]) == 2
    assert "line 1, is not the record of a run" in capsys.readouterr().err
    assert file.read_text("utf-8") == "{}\n"
    assert command.main(["purgatory", "--history", str(tmp_path / "absent" / "history.jsonl")]) == 2
    assert "nothing was measured" in capsys.readouterr().err


def test_the_help_lists_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    """`--help` explains each exit code."""
    with pytest.raises(SystemExit):
        command.main(["--help"])
    text = capsys.readouterr().out
    assert all(f"\n  {code}  " in text for code in (0, 1, 2, 3, 4))

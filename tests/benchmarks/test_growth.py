"""The benchmark of growth: models are found and checked, computed values are marked, each case measures its values."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.__main__ import main
from benchmarks.growth.case import Case, Knee, Quantity, Sizes, is_off
from benchmarks.growth.command import CASES, case_of
from benchmarks.growth.model import CONSTANT, LINEAR, LOGARITHM, at_most, fit, passes
from benchmarks.growth.plots import draw, kept, write_plots
from benchmarks.growth.shards import MASTERS, busiest_share, usual_share
from benchmarks.growth.shared_server import full_from, shared_server_model_of
from benchmarks.growth.tables import markdown
from benchmarks.narration import Narration
from benchmarks.report import write_section
from tests.servers.topologies import SLOTS, slot_ranges

DOCS = Path(__file__).resolve().parents[2] / "docs"
SIZES = (10, 100, 1_000)
TERMS = (CONSTANT, LINEAR)
AROUND = {"python": "3.13.1", "server": "valkey 9.1.2", "cpus": 2, "quick": True, "unfit": []}


def straight(error: float) -> Case:
    """A case whose cost is 5 + 2 n, and at the greatest size `error` times as much."""
    cost = {size: (5 + 2 * size) * (error if size == SIZES[-1] else 1) for size in SIZES}
    return Case(
        name="straight",
        across="things",
        axis="time, µs",
        quantities=(
            Quantity("cost_us", "µs", "time of a thing", (CONSTANT, LINEAR, LOGARITHM)),
            Quantity("twice_us", "µs", "twice the time; not measured"),
        ),
        full=Sizes(SIZES, (10_000,), 1),
        quick=Sizes(SIZES, (10_000,), 1),
        measure=lambda sizes, narration: {"cost_us": cost},
        models=lambda points: {"twice_us": fit({size: 2 * value for size, value in points["cost_us"].items()}, TERMS)},
        knees=lambda models: [Knee("over 1 ms", passes(models["cost_us"], 1_000, 10**6), "fewer things")],
    )


def test_a_fit_finds_the_constants() -> None:
    """Points that follow a model exactly give its constants; a term that adds nothing gets the constant 0."""
    found = fit({size: 30 + 4 * math.log2(size) for size in (1, 10, 1_000, 50_000)}, [CONSTANT, LOGARITHM, LINEAR])
    assert found.constants == pytest.approx([30, 4, 0], abs=1e-6)
    limited = fit({size: 7 + 3 * min(size, 80) for size in (1, 40, 500, 10_000)}, [CONSTANT, at_most(80)])
    assert limited.at(10**6) == pytest.approx(247)
    assert limited.text == "7 + 3 min(n, 80)"


def test_no_constant_is_negative() -> None:
    """Values that fall with the size get a constant model, because no cost falls with the size."""
    assert fit({1: 12.0, 10: 11.0, 100: 10.0}, [CONSTANT, LINEAR]).constants[1] == 0


def test_what_cannot_be_fitted_is_refused() -> None:
    with pytest.raises(ValueError, match="above 0"):
        fit({}, [CONSTANT])
    with pytest.raises(ValueError, match="above 0"):
        fit({1: 0.0}, [CONSTANT])


def test_a_knee_is_the_first_size_above_the_bound() -> None:
    model = fit({1: 3.0, 1_000: 3_000.0, 5_000: 15_000.0}, [LINEAR])
    assert passes(model, 301, 10**9) == 101
    assert passes(model, 1e12, 10**9) is None


@pytest.mark.parametrize(("error", "off"), [(1.1, False), (1.5, True)])
def test_the_check_is_at_a_size_that_the_law_has_not_seen(error: float, off: bool) -> None:
    """A cost that jumps at the greatest size does not change the model. Then the tables say that the model is wrong.

    A model is a formula for the cost by size. It is fitted to the smaller sizes, and checked at the greatest one.
    """
    case = straight(error)
    result = {**case.run(case.full, Narration(1)), "surroundings": AROUND}
    cost = result["quantities"]["cost_us"]
    assert cost["check"]["by_model"] == pytest.approx(2_005)
    assert cost["check"]["error_percent"] == pytest.approx(100 / error - 100, abs=0.1)
    assert is_off(cost["check"]) == off
    assert ("the model is off here" in markdown(result)) == off


def test_computed_values_are_marked_in_table_and_picture(tmp_path: Path) -> None:
    """A value that was not measured is called computed in the table, and has a hollow mark in the picture."""
    case = straight(1)
    result = {**case.run(case.full, Narration(1)), "surroundings": AROUND}
    rows = {line.split(" | ")[0]: line for line in markdown(result).splitlines()}
    assert rows["| 1,000"] == "| 1,000 | 2,005 | *4,010* computed |"
    assert rows["| 10,000"] == "| 10,000 | *20,005* computed | *40,010* computed |"
    assert rows["| over 1 ms"] == "| over 1 ms | 498 | fewer things |"
    assert "only computed: this machine cannot measure it" in rows["| `twice_us`"]
    (picture,) = write_plots({"straight": result}, tmp_path)
    root = ElementTree.parse(picture).getroot()  # noqa: S314 - written a line above
    classes = [one.get("class") or "" for one in root.iter("{http://www.w3.org/2000/svg}path") if one.get("transform")]
    legend = 3
    assert sum(name == "m0" for name in classes) == len(SIZES) + 1
    assert sum(name.startswith("hollow") for name in classes) == 1 + 1 + len(SIZES) + 1 + legend - 1


def test_other_cases_stay_when_one_is_written(tmp_path: Path) -> None:
    """The pictures are drawn from the kept results, and a run of one case keeps the results of the others."""
    case = straight(1)
    result = {**case.run(case.full, Narration(1)), "surroundings": AROUND}
    write_plots({"one": result}, tmp_path)
    paths = write_plots({"two": result}, tmp_path)
    assert [path.name for path in paths] == ["growth-one.svg", "growth-two.svg"]
    before = [path.read_text("utf-8") for path in paths]
    assert [path.read_text("utf-8") for path in draw(tmp_path)] == before


def test_the_command_writes_what_it_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`python -m benchmarks growth --case` prints JSON, and writes the page and the pictures."""
    monkeypatch.setattr("benchmarks.growth.command.case_of", lambda name: replace(straight(1), name=name))
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- figures: waiting -->\n<!-- end of figures: waiting -->\nafter\n", "utf-8")
    asked = ["growth", "--case", "waiting", "--quick", "--json", "--markdown", str(page), "--plots", str(tmp_path)]
    assert main(asked) == 0
    assert json.loads(capsys.readouterr().out)["waiting"]["surroundings"]["quick"] is True
    assert "| 10,000 | *20,005* computed |" in page.read_text("utf-8")
    assert page.read_text("utf-8").endswith("after\n")
    assert (tmp_path / "growth-waiting.svg").exists()


def test_a_rate_ends_where_a_processor_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes on one machine share its processors with the server. If they have their own, only the server limits the
    rate."""
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    points = {"rate_per_s": {1: 1_000.0, 2: 1_500.0}, "process_us": {1: 900.0, 2: 900.0}, "server_us": {1: 100.0}}
    shared = shared_server_model_of(points)
    assert [shared.here().at(count) for count in (1, 2, 8)] == [1_000, 2_000, 2_000]
    assert [shared.apart().at(count) for count in (1, 2, 8, 16)] == [1_000, 2_000, 8_000, 10_000]
    assert full_from(shared.here()) == 2
    assert full_from(shared.apart()) == 10


@pytest.mark.parametrize("shards", [1, 3, 16, 64])
def test_the_busiest_master_has_at_least_a_third_of_the_shards(shards: int) -> None:
    """The three masters share all slots, each slot once. So the busiest has at least a third of the shards."""
    ranges = slot_ranges(MASTERS)
    assert [slot for first, last in ranges for slot in range(first, last + 1)] == list(range(SLOTS))
    assert 1 / MASTERS <= busiest_share(shards) <= 1
    assert 1 / MASTERS < usual_share(shards) < (1 if shards > 1 else 1.01)


@pytest.mark.parametrize("name", CASES)
def test_the_page_has_the_kept_results(name: str, tmp_path: Path) -> None:
    """The tables of the page are those of the results that are kept beside the pictures, from a full run."""
    result = kept(DOCS / "images")[name]
    page = tmp_path / "page.md"
    page.write_text((DOCS / "internals" / "growth.md").read_text("utf-8"), "utf-8")
    before = page.read_text("utf-8")
    write_section(page, name, markdown(result))
    assert page.read_text("utf-8") == before
    assert f"(../images/growth-{name}.svg)" in before
    assert result["surroundings"]["quick"] is False


# small sizes, so that a run takes seconds; tests/kafka runs the case that needs Kafka
SMALL = {
    "waiting": Sizes((500, 1_000, 2_000), (5_000_000,), 400),
    "topics": Sizes((1, 10, 100), (1_000,), 400),
    "dispatchers": Sizes((1, 2), (8,), 2_000),
    "jobs": Sizes((1_000, 1_500, 2_000), (1_000_000,), 200),
    "celery-workers": Sizes((1, 2), (8,), 200),
    "shards": Sizes((1, 2, 3), (16,), 1_000),
    "ordering-keys": Sizes((400, 1_000, 2_000), (1_000_000,), 400),
}


def test_each_case_has_a_small_run() -> None:
    assert set(SMALL) == set(CASES) - {"partitions"}


@pytest.mark.proof
@pytest.mark.real
@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", SMALL)
def test_a_case_measures_every_value(name: str, tmp_path: Path) -> None:
    """A small run on real servers gives each value at each measured size, a model, a check, tables and a picture."""
    case = case_of(name)
    sizes = SMALL[name]
    result = {**case.run(sizes, Narration(len(sizes.measured))), "surroundings": AROUND}
    measured = [one for one in result["quantities"].values() if one["check"]]
    assert measured
    for one in measured:
        assert list(one["measured"]) == [str(size) for size in sizes.measured]
        assert min(one["measured"].values()) > 0
    assert all(list(one["computed"])[-1:] == [str(size) for size in sizes.computed] for one in measured)
    assert result["knees"]
    assert write_plots({name: json.loads(json.dumps(result))}, tmp_path)
    assert "| value | meaning |" in markdown(result)

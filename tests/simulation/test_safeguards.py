"""The checker of the simulation can fail: with a safeguard switched off, a history breaks a promise.

The file `found.json` stores for each safeguard which history breaks a promise without it.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.simulation.safeguards.finding import (
    PAGE,
    SEEDS,
    Finding,
    first_violation,
    load,
    page,
    scenario_of,
    shows,
    stored_history,
)
from tests.simulation.safeguards.switching import source_at
from tests.simulation.safeguards.table import SAFEGUARDS, Safeguard
from wheel_sched.simulation.__main__ import kinds
from wheel_sched.simulation.runner import run_scenarios

FOUND = load()
NAMES = [safeguard.name for safeguard in SAFEGUARDS]
SHOWN = [safeguard for safeguard in SAFEGUARDS if not safeguard.hidden]
KEPT = [finding for finding in FOUND.values() if finding.scenario is not None]
LEAST = 30
MOST_STEPS = 20


def named(name: str) -> Safeguard:
    (found,) = (safeguard for safeguard in SAFEGUARDS if safeguard.name == name)
    return found


def median(numbers: Sequence[int]) -> int:
    return sorted(numbers)[len(numbers) // 2]


@pytest.mark.parametrize("safeguard", SAFEGUARDS, ids=lambda one: one.name)
def test_each_safeguard_is_where_the_table_says(safeguard: Safeguard) -> None:
    """The function that a safeguard names still has the source text that a test changes to switch it off."""
    for where, old, _ in safeguard.changes:
        assert old in source_at(where)[2]


def test_each_safeguard_has_a_name_of_its_own() -> None:
    """No two safeguards share a name, because `found.json` stores its entries by the safeguard's name."""
    assert len(set(NAMES)) == len(NAMES)


def test_the_page_shows_what_was_found() -> None:
    """The documentation page `simulator-safeguards.md` agrees with `found.json`. `python -m
    tests.simulation.find_safeguards` writes both."""
    assert set(FOUND) <= {safeguard.name for safeguard in SHOWN}
    assert PAGE.read_text() == page(list(FOUND.values()), [one for one in SAFEGUARDS if one.hidden])


@pytest.mark.proof
def test_each_safeguard_has_been_noticed() -> None:
    """For each safeguard that is not hidden, `found.json` names a history that breaks a promise without the safeguard.

    The history is among the first `SEEDS` histories. If a hidden safeguard is switched off, few histories
    or none break a promise.
    """
    assert set(FOUND) == {safeguard.name for safeguard in SHOWN}
    assert [finding.name for finding in FOUND.values() if finding.seeds is None or finding.seeds > SEEDS] == []
    assert len(FOUND) >= LEAST


def test_failing_histories_become_short() -> None:
    """The median of the shrunk scenarios has at most twenty sends and faults."""
    steps = [finding.steps for finding in FOUND.values() if finding.steps is not None]
    assert not steps or median(steps) <= MOST_STEPS


@pytest.mark.slow
@pytest.mark.parametrize("finding", KEPT, ids=lambda one: one.name)
def test_the_product_keeps_its_promises_where_it_did_not_without_a_safeguard(finding: Finding) -> None:
    """With all safeguards on, no stored scenario breaks a promise."""
    assert finding.scenario is not None
    (result,) = run_scenarios(kinds()[finding.world], [scenario_of(finding.scenario)])
    assert result.violations == ()


@pytest.mark.slow
@pytest.mark.parametrize("finding", KEPT[:: max(1, len(KEPT) // 5)], ids=lambda one: one.name)
def test_without_a_safeguard_a_kept_scenario_breaks_a_promise(finding: Finding) -> None:
    """A stored scenario breaks a promise again without its safeguard. This test tries about five stored scenarios."""
    assert finding.scenario is not None
    assert shows(kinds()[finding.world], named(finding.name), scenario_of(finding.scenario))


@pytest.mark.proof
@pytest.mark.timeout(300)
@pytest.mark.parametrize("safeguard", SHOWN, ids=lambda one: one.name)
def test_each_safeguard_is_noticed_within_a_thousand_histories(safeguard: Safeguard) -> None:
    """Without the safeguard, the stored history or one of the first thousand histories breaks a promise."""
    kind = kinds()[safeguard.world]
    stored = stored_history(kind, FOUND.get(safeguard.name))
    if stored is None or not shows(kind, safeguard, stored):
        assert first_violation(kind, safeguard, SEEDS) is not None

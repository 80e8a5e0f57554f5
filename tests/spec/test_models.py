"""The models of the protocol keep all properties at small bounds. `make spec` tries larger bounds."""

from __future__ import annotations

from typing import Any

import pytest

from tests.spec.explorer import FINISHES, Model, explore
from tests.spec.owned_claims import OwnedClaims
from tests.spec.shared_claims import SharedClaims

pytestmark = [pytest.mark.slow, pytest.mark.proof]


@pytest.mark.parametrize(
    ("model", "states"),
    [
        (SharedClaims(faults=1), 23_345),
        (SharedClaims(items=1, faults=3), 26_806),
        (OwnedClaims(faults=2), 59_557),
    ],
    ids=lambda value: value.name if isinstance(value, Model) else None,
)
def test_all_properties_hold_in_every_state(model: Model[Any], states: int) -> None:
    """All properties hold in every state. The expected number of states shows if a model lost some by mistake."""
    found = explore(model)
    assert found.violated is None, str(found)
    assert found.states == states


def test_a_state_that_cannot_reach_the_end_is_found() -> None:
    """Without tokens, a repeat does not return the claim whose reply was lost, so this claim is open for ever.

    The explorer reports that the model does not finish.
    """
    found = explore(OwnedClaims(faults=1, broken="claim-without-token"))
    assert found.violated == FINISHES
    assert found.path[-1][0] == "RepeatClaim"


def test_an_unknown_safeguard_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a safeguard of OwnedClaims, got: 'no-clocks'"):
        OwnedClaims(broken="no-clocks")


@pytest.mark.parametrize("model", [SharedClaims(faults=1), OwnedClaims(faults=1)], ids=lambda model: model.name)
def test_an_exploration_up_to_the_order_visits_one_of_each(model: Model[Any]) -> None:
    """Of states that differ only in the order of items and processes, the explorer visits exactly one."""
    seen = {model.initial()}
    waiting = list(seen)
    for state in waiting:
        for _, _, after in model.steps(state):
            if after not in seen:
                seen.add(after)
                waiting.append(after)
    found = explore(model, renamed=True)
    assert found.violated is None, str(found)
    assert found.states == len({model.renamed(state) for state in seen}) < len(seen) * 0.6


@pytest.mark.parametrize(
    ("model", "safeguard"),
    [(model, name) for model in (SharedClaims, OwnedClaims) for name in model.safeguards if name != "refresh-in-doubt"],
)
def test_an_exploration_up_to_the_order_finds_a_missing_safeguard(model: type[Model[Any]], safeguard: str) -> None:
    promise = model.safeguards[safeguard]
    found = [explore(model(faults=faults, broken=safeguard), {promise}, renamed=True).violated for faults in (1, 2)]
    assert promise in found

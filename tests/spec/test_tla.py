"""The TLA+ modules and the models in Python have the same names and, if the checker is installed, the same states."""

from __future__ import annotations

from typing import Any

import pytest

from tests.spec import tla
from tests.spec.__main__ import MODELS
from tests.spec.explorer import Model, explore
from tests.spec.owned_claims import OwnedClaims
from tests.spec.shared_claims import SharedClaims

pytestmark = pytest.mark.slow

BROKEN = [(model, name) for model in MODELS for name in model.safeguards]

every_model = pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
needs_checker = pytest.mark.skipif(tla.checker() is None, reason="needs the program tla: make spec ARGS=--tla")


def actions_seen(model: Model[Any], at_most: int) -> set[str]:
    """The names of all actions in the first `at_most` states of a model."""
    seen = {model.initial()}
    waiting = list(seen)
    actions = set()
    for state in waiting:
        for action, _, after in model.steps(state):
            actions.add(action)
            if after not in seen and len(seen) < at_most:
                seen.add(after)
                waiting.append(after)
    return actions


@every_model
def test_the_variables_are_the_same(model: type[Model[Any]]) -> None:
    assert tla.variables_of(model.name) == list(model().initial()._fields)


@every_model
def test_the_actions_are_the_same(model: type[Model[Any]]) -> None:
    assert actions_seen(model(faults=2), 10_000) == tla.actions_of(model.name)


@every_model
def test_the_invariants_are_the_same(model: type[Model[Any]]) -> None:
    """The TLA+ module defines each invariant, and its configuration makes the checker test it."""
    names = tla.invariants_of(model.name)
    assert names == list(model().invariants)
    assert set(names) <= set(tla.DEFINITION.findall(tla.text_of(model.name)))


@every_model
def test_the_safeguards_are_the_same(model: type[Model[Any]]) -> None:
    """The TLA+ module and the model have the same safeguards, and each safeguard keeps an invariant of the model."""
    assert tla.safeguards_of(model.name) == set(model.safeguards)
    assert set(model.safeguards.values()) <= set(model().invariants)


@needs_checker
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("model", [SharedClaims(faults=1), OwnedClaims(faults=1)], ids=lambda model: model.name)
def test_the_checker_visits_the_same_states(model: Model[Any]) -> None:
    """The checker finds no deadlock and no broken invariant, and counts as many states as the explorer in Python."""
    program = tla.checker()
    assert program is not None
    checked = tla.check(program, model)
    assert (checked.status, checked.states) == ("ok", explore(model).states)


@needs_checker
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("model", "safeguard"), BROKEN, ids=[f"{model.name}-{name}" for model, name in BROKEN])
def test_the_checker_refuses_a_module_without_a_safeguard(model: type[Model[Any]], safeguard: str) -> None:
    if safeguard == "refresh-in-doubt":
        pytest.skip("needs three faults: the checker would take long, the explorer in Python finds it")
    program = tla.checker()
    assert program is not None
    single = model is OwnedClaims and safeguard in ("claim-number-not-compared", "doubt-not-confirmed")
    bounds: dict[str, Any] = {"items": 1, "faults": 2} if single else {"faults": 1}
    assert tla.check(program, model(broken=safeguard, **bounds)).status != "ok"

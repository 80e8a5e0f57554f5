"""The checker can fail: with a safeguard of the product switched off, a history breaks a promise."""

from __future__ import annotations

import importlib
import inspect

import pytest

from retry_topic.simulation.checker import RetryKind
from tests.simulation.safeguards import SAFEGUARDS, Safeguard, switched_off
from wheel_sched.simulation.runner import run_seeds

# those that the first seeds show; the others need more seeds, or an invariant that is still missing
SOON = (
    "a claim takes only what is due",
    "an earlier item writes the marker",
    "the consumer acknowledges after the handler",
)


@pytest.mark.parametrize("safeguard", SAFEGUARDS, ids=lambda one: one.name)
def test_each_safeguard_is_where_the_table_says(safeguard: Safeguard) -> None:
    """The text that is changed stands in the source of the named function."""
    module, _, path = safeguard.where.partition(":")
    found = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    assert safeguard.old in inspect.getsource(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", SOON)
def test_without_a_safeguard_a_history_breaks_a_promise(name: str) -> None:
    """One of forty histories is enough."""
    (safeguard,) = (one for one in SAFEGUARDS if one.name == name)
    with switched_off(safeguard):
        broken = [result for result in run_seeds(RetryKind(), range(40)) if result.violations]
    assert broken

"""Which configurations of a dispatcher are accepted. An error names every wrong field."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

from wheel_sched.dispatcher import DispatcherConfig
from wheel_sched.errors import ConfigError
from wheel_sched.store.core.items import MAX_BATCH

NAMES = [field.name for field in fields(DispatcherConfig)]


def test_the_defaults_are_valid_and_frozen() -> None:
    """A dispatcher needs no setting, and no code can change the settings of a running dispatcher."""
    config = DispatcherConfig()
    with pytest.raises(FrozenInstanceError):
        config.batch = 1  # type: ignore[misc]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("wrong", [-1, 1.5, "1", None, True])
def test_a_wrong_value_is_named(name: str, wrong: Any) -> None:
    """The error names the field, the expected value and the given value. Floats and booleans are not whole numbers."""
    with pytest.raises(ConfigError) as caught:
        DispatcherConfig(**{name: wrong})
    (problem,) = caught.value.problems
    assert problem.startswith(f"expected {name} to be a whole number from ")
    assert problem.endswith(f", got: {wrong!r}")


def test_every_problem_is_named_at_once() -> None:
    """One error names all fields with a wrong value."""
    settings: dict[str, Any] = dict.fromkeys(NAMES, -1)
    with pytest.raises(ConfigError) as caught:
        DispatcherConfig(**settings)
    assert [problem.split()[1] for problem in caught.value.problems] == NAMES


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("batch")])
def test_a_batch_has_an_upper_bound(name: str) -> None:
    """A batch size above MAX_BATCH is refused, because a script over more items would block the server for other
    clients."""
    DispatcherConfig(**{name: MAX_BATCH})
    with pytest.raises(ConfigError, match=f"expected {name} to be at most {MAX_BATCH}, got: {MAX_BATCH + 1}"):
        DispatcherConfig(**{name: MAX_BATCH + 1})


@pytest.mark.parametrize(
    "wrong",
    ["x" * 100_000, [0] * 100_000, -(10**3_000), 10**3_000, -(10**5_000), 10**5_000],
    ids=("text", "list", "below", "above", "far below", "far above"),
)
def test_a_huge_value_is_not_quoted_whole(wrong: Any) -> None:
    """The error names the setting and shortens a huge value, even one that Python refuses to print."""
    with pytest.raises(ConfigError) as caught:
        DispatcherConfig(batch=wrong)
    (problem,) = caught.value.problems
    assert problem.startswith("expected batch to be ")
    assert len(problem) < 200


@pytest.mark.parametrize("name", ["lapse_cap", "dead_cap", "dead_age_ms"])
def test_zero_lifts_a_bound(name: str) -> None:
    """With `lapse_cap=0` an item may lapse any number of times. With 0, `dead_cap` and `dead_age_ms` trim no dead
    letters."""
    assert getattr(DispatcherConfig(**{name: 0}), name) == 0

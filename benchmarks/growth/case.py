"""A case: one size that grows, the values that are measured at some sizes, their models, the check and the knees.

The models are found from all measured sizes but the greatest. At the greatest size each model is checked: its value is
compared with the measured one. Larger sizes are only computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.growth.model import Model, Term, fit
from benchmarks.narration import Narration

OFF_PERCENT = 25.0  # if a check is further off, the tables say that the model is off
Points = Mapping[str, Mapping[int, float]]  # values by quantity and size
Models = Mapping[str, Model]


@dataclass(frozen=True, slots=True)
class Quantity:
    """A value that depends on the size.

    Args:
        key: its name, which ends with its unit.
        unit: its unit.
        meaning: one line that says what it is.
        terms: the terms of its model. Defaults to none: the case makes the model itself.
        drawn: whether the picture shows it. All drawn quantities of a case have one unit. Defaults to True.
    """

    key: str
    unit: str
    meaning: str
    terms: Sequence[Term] = ()
    drawn: bool = True


@dataclass(frozen=True, slots=True)
class Knee:
    """The size from which a bound is passed.

    Args:
        bound: the bound in words.
        size: the least size that passes it; None: no size up to the greatest that was looked at.
        advice: what to do there.
    """

    bound: str
    size: int | None
    advice: str


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a run.

    Args:
        measured: the sizes that are measured, rising, at least two.
        computed: the sizes that are only computed.
        work: how many messages, keys or jobs each measurement handles.
        rounds: how often each size is measured where processes work together; the median counts. Defaults to 1.
    """

    measured: Sequence[int]
    computed: Sequence[int]
    work: int
    rounds: int = 1


@dataclass(frozen=True, slots=True)
class Case:
    """One size that grows.

    Args:
        name: the name on the command line.
        across: what the size counts, e.g. "waiting messages".
        axis: the label of the picture's vertical axis.
        quantities: the values.
        full, quick: the sizes of a full and of a quick run.
        measure: measures all quantities at all sizes of a run.
        knees: the knees by the models.
        models: makes the models of quantities without terms, from all points but those at the greatest size.
    """

    name: str
    across: str
    axis: str
    quantities: Sequence[Quantity]
    full: Sizes
    quick: Sizes
    measure: Callable[[Sizes, Narration], Points]
    knees: Callable[[Models], Sequence[Knee]]
    models: Callable[[Points], Models] = lambda points: {}

    def run(self, sizes: Sizes, narration: Narration) -> dict[str, Any]:
        """Measure the case, and check its models. Returns what is printed and stored."""
        points = self.measure(sizes, narration)
        return self.judged(points, sizes)

    def judged(self, points: Points, sizes: Sizes) -> dict[str, Any]:
        """The result of measured points: models, checks, computed values and knees."""
        checked_at = sizes.measured[-1]
        smaller = {
            key: {size: value for size, value in values.items() if size < checked_at} for key, values in points.items()
        }
        models = {**self.models(smaller)}
        for quantity in self.quantities:
            if quantity.key not in models:
                models[quantity.key] = fit(smaller[quantity.key], quantity.terms)
        return {
            "across": self.across,
            "axis": self.axis,
            "quantities": {
                quantity.key: _judged(quantity, points.get(quantity.key, {}), models[quantity.key], sizes)
                for quantity in self.quantities
            },
            "knees": [asdict(knee) for knee in self.knees(models)],
        }


def _judged(quantity: Quantity, values: Mapping[int, float], model: Model, sizes: Sizes) -> dict[str, Any]:
    """One quantity of a result. A quantity that cannot be measured here has no check, and is computed at each size."""
    checked_at = sizes.measured[-1]
    check = None
    if checked_at in values:
        by_model = model.at(checked_at)
        error = 100 * (by_model / values[checked_at] - 1)
        check = {
            "size": checked_at,
            "measured": values[checked_at],
            "by_model": by_model,
            "error_percent": round(error, 1),
        }
    beyond = sizes.computed if values else [*sizes.measured, *sizes.computed]
    return {
        "unit": quantity.unit,
        "meaning": quantity.meaning,
        "drawn": quantity.drawn,
        "model": model.text,
        "measured": {str(size): value for size, value in values.items()},
        "computed": {str(size): model.at(size) for size in beyond},
        "check": check,
    }


def is_off(check: Mapping[str, Any]) -> bool:
    """Whether the model was too far from the measured value."""
    return bool(abs(check["error_percent"]) > OFF_PERCENT)

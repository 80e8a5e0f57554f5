"""Models: a value as a function of a size, with few constants. `fit` finds the constants from measured points.

A fitted model is a sum of terms with constants that are not negative, e.g. `12 + 0.8 log2(n)`. The fit makes the sum of
the squared relative errors small, so a small value counts as much as a large one. A constant that would be negative is
0: no cost falls with the size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Protocol


class Model(Protocol):
    """A model of one value."""

    @property
    def text(self) -> str:
        """The formula with its constants; `n` is the size."""
        ...

    def at(self, size: float) -> float:
        """The value at this size."""
        ...


@dataclass(frozen=True, slots=True)
class Term:
    """One summand of a model: `of(n)`, written as `text`. The constant summand has the text ""."""

    text: str
    of: Callable[[float], float]


CONSTANT = Term("", lambda size: 1.0)
LINEAR = Term("n", lambda size: size)
LOGARITHM = Term("log2(n)", math.log2)


def at_most(limit: int) -> Term:
    """A term that grows with the size up to `limit`, and not beyond."""
    return Term(f"min(n, {limit})", lambda size: min(size, limit))


def logarithm_from(start: int) -> Term:
    """A term that is 0 up to the size `start`, and grows with the logarithm beyond."""
    return Term(f"max(0, log2(n / {start}))", lambda size: max(0.0, math.log2(size / start)))


@dataclass(frozen=True, slots=True)
class Sum:
    """A model that is a sum of terms, each times its constant."""

    terms: Sequence[Term]
    constants: Sequence[float]

    @property
    def text(self) -> str:
        parts = [
            f"{_constant_text(constant)} {term.text}".rstrip()
            for term, constant in zip(self.terms, self.constants, strict=True)
            if constant
        ]
        return " + ".join(parts) or "0"

    def at(self, size: float) -> float:
        return sum(constant * term.of(size) for term, constant in zip(self.terms, self.constants, strict=True))


def _constant_text(value: float) -> str:
    return f"{value:.0f}" if value >= 1_000 else f"{value:.3g}"


@dataclass(frozen=True, slots=True)
class Formula:
    """A model whose constants were measured one by one, e.g. a rate that is the least of several bounds."""

    text: str
    of: Callable[[float], float]

    def at(self, size: float) -> float:
        return self.of(size)


def fit(points: Mapping[int, float], terms: Sequence[Term]) -> Sum:
    """The sum of these terms that is closest to the points.

    Raises:
        ValueError: there is no point, or a value is not above 0.
    """
    if not points or min(points.values()) <= 0:
        raise ValueError(f"expected points with values above 0, got: {dict(points)}")
    best, least = Sum(terms, [0.0] * len(terms)), math.inf
    for count in range(1, min(len(terms), len(points)) + 1):
        for chosen in combinations(range(len(terms)), count):
            constants = _constants(points, [terms[place] for place in chosen])
            if constants is None or min(constants) < 0:
                continue
            found = Sum(terms, [dict(zip(chosen, constants, strict=True)).get(n, 0.0) for n in range(len(terms))])
            error = sum((found.at(size) / value - 1) ** 2 for size, value in points.items())
            if error < least * (1 - 1e-9):  # of two sums that are equally close, take the one with fewer terms
                best, least = found, error
    return best


def _constants(points: Mapping[int, float], terms: Sequence[Term]) -> list[float] | None:
    """The constants with the least squared relative errors, by the normal equations; None: no single answer."""
    rows = [[term.of(size) / value for term in terms] for size, value in points.items()]
    count = len(terms)
    matrix = [
        [*(sum(row[i] * row[j] for row in rows) for j in range(count)), sum(row[i] for row in rows)]
        for i in range(count)
    ]
    for step in range(count):
        pivot = max(range(step, count), key=lambda line: abs(matrix[line][step]))
        matrix[step], matrix[pivot] = matrix[pivot], matrix[step]
        if abs(matrix[step][step]) < 1e-12 * max(abs(row[step]) ** 2 for row in rows) or not matrix[step][step]:
            return None
        for line in range(count):
            if line != step:
                factor = matrix[line][step] / matrix[step][step]
                matrix[line] = [a - factor * b for a, b in zip(matrix[line], matrix[step], strict=True)]
    return [matrix[line][count] / matrix[line][line] for line in range(count)]


GREATEST = 10**9  # a knee beyond this size is of no use


def passes(model: Model, bound: float, greatest: int = GREATEST) -> int | None:
    """The least whole size up to `greatest` from which a rising value is above the bound; None if there is none."""
    if model.at(greatest) <= bound:
        return None
    low, high = 0, greatest
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if model.at(middle) > bound else (middle, high)
    return high

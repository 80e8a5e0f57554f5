"""The result of a case as Markdown, for docs/internals/growth.md and for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.growth.case import is_off


def markdown(result: Mapping[str, Any]) -> str:
    """The tables of a case: values by size, models with checks, knees. The last line says where it was measured."""
    return "\n\n".join([_values(result), _models(result), _knees(result), _surroundings(result)])


def _values(result: Mapping[str, Any]) -> str:
    quantities = result["quantities"]
    sizes = sorted({int(size) for one in quantities.values() for kind in _KINDS for size in one[kind]})
    head = [result["across"], *(f"`{key}`, {one['unit']}" for key, one in quantities.items())]
    rows = [[f"{size:,}", *(_cell(one, str(size)) for one in quantities.values())] for size in sizes]
    return _table(head, rows)


_KINDS = ("measured", "computed")


def _cell(quantity: Mapping[str, Any], size: str) -> str:
    if size in quantity["measured"]:
        return value_text(quantity["measured"][size])
    return f"*{value_text(quantity['computed'][size])}* computed" if size in quantity["computed"] else ""


def _models(result: Mapping[str, Any]) -> str:
    rows = [
        [f"`{key}`", one["meaning"], f"`{one['model']}`", _check(one["check"])]
        for key, one in result["quantities"].items()
    ]
    return _table(["value", "meaning", "model, n = size", "check at the greatest measured size"], rows)


def _check(check: Mapping[str, Any] | None) -> str:
    if check is None:
        return "only computed: this machine cannot measure it"
    text = (
        f"{check['size']:,}: {value_text(check['by_model'])} by the model, {value_text(check['measured'])} measured, "
        f"{check['error_percent']:+.1f} %"
    )
    return f"{text}: **the model is off here**" if is_off(check) else text


def _knees(result: Mapping[str, Any]) -> str:
    rows = [
        [knee["bound"], "not in sight" if knee["size"] is None else f"{knee['size']:,}", knee["advice"]]
        for knee in result["knees"]
    ]
    return _table(["bound", f"knee ({result['across']})", "what to do there"], rows)


def _surroundings(result: Mapping[str, Any]) -> str:
    around = result["surroundings"]
    quick = ", quick" if around["quick"] else ""
    text = f"Measured on Python {around['python']}, {around['server']}, {around['cpus']} processors{quick}."
    return "\n".join([text, *(f"The machine was not fit to measure: {reason}." for reason in around["unfit"])])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def value_text(value: float) -> str:
    """A value with three significant digits, or all digits of its whole part."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"

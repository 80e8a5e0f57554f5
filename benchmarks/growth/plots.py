"""The pictures of the cases. They are drawn from `growth.json`, which keeps the results beside them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.charts import ChartPanel, Words, lines

_KEPT = "growth.json"
_UNIT = re.compile(r"_(us|ms|per_s)$")


def kept(folder: Path) -> dict[str, Any]:
    """The results that the folder keeps, by case; none if it has no `growth.json`."""
    path = folder / _KEPT
    found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return found


def write_plots(results: Mapping[str, Any], folder: Path) -> list[Path]:
    """Keep the results in the folder, those of other cases too, and draw all cases. Returns the paths of pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _KEPT).write_text(json.dumps(kept(folder) | dict(results), indent=2) + "\n", "utf-8")
    return draw(folder)


def draw(folder: Path) -> list[Path]:
    """Draw `growth-<case>.svg` for each result that the folder keeps. Returns their paths."""
    paths = []
    for name, result in kept(folder).items():
        path = folder / f"growth-{name}.svg"
        path.write_text(_drawn(result), "utf-8")
        paths.append(path)
    return paths


def _drawn(result: Mapping[str, Any]) -> str:
    """The picture of a result. Measured values have a solid line; from the check on, the model has a dashed one."""
    legend: list[str] = []
    shown: dict[int, list[tuple[float, float]]] = {}
    modelled: list[int] = []
    for key, one in result["quantities"].items():
        if not one["drawn"]:
            continue
        name = _UNIT.sub("", key).replace("_", " ")
        if one["measured"]:
            shown[len(legend)] = _places(one["measured"])
            legend.append(name)
        check = {str(one["check"]["size"]): one["check"]["by_model"]} if one["check"] else {}
        shown[len(legend)] = _places(check | one["computed"])
        modelled.append(len(legend))
        legend.append(f"{name}, by the model")
    words = Words(
        title=f"How cost grows with {result['across']}",
        description="Measured values have filled marks, values of the model have hollow marks and a dashed line.",
        axis=result["axis"],
        legend=legend,
        across=result["across"],
    )
    return lines(words, [ChartPanel("", shown)], logs=(True, True), dashed=modelled, hollow=modelled)


def _places(values: Mapping[str, float]) -> list[tuple[float, float]]:
    return sorted((int(size), round(value, 3)) for size, value in values.items())

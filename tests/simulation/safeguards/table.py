"""The table of the product's safeguards. Each entry is a change of the source that switches one safeguard off.

Each module of this folder except `table`, `switching` and `finding` lists the safeguards of one part of the product, in
`SAFEGUARDS`. `finding` records for each safeguard a history that breaks a promise without it.
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

from tests.simulation.safeguards.switching import Safeguard, switched_off

PACKAGE = "tests.simulation.safeguards"
__all__ = ["SAFEGUARDS", "Safeguard", "switched_off"]

SAFEGUARDS: list[Safeguard] = [
    safeguard
    for module in pkgutil.iter_modules([str(Path(__file__).parent)])
    if module.name != "table"
    for safeguard in getattr(importlib.import_module(f"{PACKAGE}.{module.name}"), "SAFEGUARDS", ())
]

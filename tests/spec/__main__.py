"""`make spec`: visits every state of the claim protocol within small bounds, and switches each safeguard off.

With `--tla` it also runs the modules of `docs/spec` with a TLA+ checker (crate `tla-checker`), which cargo builds once.
With `--show NAME` it prints the shortest way to a broken promise if the safeguard NAME is off. With `--states` it only
visits the states. After `make proofs` this is enough, because a test there switches each safeguard off.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from tests.spec import tla
from tests.spec.explorer import Found, Model, explore
from tests.spec.owned_claims import OwnedClaims
from tests.spec.shared_claims import SharedClaims

BOUNDS: tuple[Model[Any], ...] = (
    SharedClaims(faults=2),
    SharedClaims(items=1, faults=4),
    OwnedClaims(faults=3),
)
MODELS: tuple[type[Model[Any]], ...] = (SharedClaims, OwnedClaims)


def without(model: type[Model[Any]], safeguard: str) -> Found[Any]:
    """The shortest way to break the promise of `safeguard` if the safeguard is off, with as few faults as possible.

    Raises:
        LookupError: three faults do not break that promise.
    """
    promise = model.safeguards[safeguard]
    for faults in (1, 2, 3):
        found = explore(model(faults=faults, broken=safeguard), {promise})
        if found.violated:
            return found
    raise LookupError(f"{model.name} without {safeguard}: three faults do not break {promise}")


def _explored(model: Model[Any]) -> bool:
    began_s = time.monotonic()
    found = explore(model, renamed=True)
    size = f"processes: {model.processes}, items: {model.items}, faults: up to {model.faults}"
    print(f"{model.name} ({size}): {found} ({time.monotonic() - began_s:.0f} s)", flush=True)  # noqa: T201
    return found.violated is None


def _safeguards(shown: str | None) -> bool:
    fine = True
    for model in MODELS:
        for safeguard in model.safeguards:
            try:
                found = without(model, safeguard)
            except LookupError as error:
                fine = False
                print(f"NOT REFUSED: {error}")  # noqa: T201
                continue
            text = str(found) if shown in (safeguard, "all") else str(found).partition("\n")[0].rstrip(":")
            print(f"{model.name} without {safeguard}: {text}", flush=True)  # noqa: T201
    return fine


def _tla() -> bool:
    tla.install()
    program, fine = tla.checker(), True
    assert program is not None
    for model in (SharedClaims(faults=1), OwnedClaims(faults=1)):
        checked, expected = tla.check(program, model), explore(model).states
        same = (checked.status, checked.states) == ("ok", expected)
        fine &= same
        answer = f"{checked.status}, {checked.states:,} states; in Python {expected:,}"
        print(f"{model.name}.tla: {answer}{'' if same else ': NOT THE SAME'}", flush=True)  # noqa: T201
    return fine


def main() -> int:
    """Run the checks. Returns 0 if all properties hold and each safeguard is necessary."""
    parser = argparse.ArgumentParser(prog="python -m tests.spec", description=__doc__)
    parser.add_argument("--tla", action="store_true", help="also build the TLA+ checker and run the modules")
    parser.add_argument("--show", metavar="NAME", help='print the steps without this safeguard; "all": without each')
    parser.add_argument("--states", action="store_true", help="only visit the states")
    options = parser.parse_args()
    fine = min([_explored(model) for model in BOUNDS])  # a list, so that a failure does not end the loop
    if not options.states:
        fine &= _safeguards(options.show)
    if options.tla:
        fine &= _tla()
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())

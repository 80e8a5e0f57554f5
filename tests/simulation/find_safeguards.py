"""Switches the product's safeguards off, one at a time, and finds the first history that then breaks a promise.

python -m tests.simulation.find_safeguards                      all safeguards; writes the results to found.json
python -m tests.simulation.find_safeguards --only "claim" -v    those whose names hold this text, with the violations
python -m tests.simulation.find_safeguards --missing --shrink   those for which no such history was found yet
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict

from tests.simulation.safeguards.finding import PAGE, SEEDS, Finding, find, load, page, save
from tests.simulation.safeguards.table import SAFEGUARDS
from wheel_sched.simulation.__main__ import kinds
from wheel_sched.simulation.runner import HASH_SEED


def main() -> int:
    """Switch each chosen safeguard off and look for a history that breaks a promise.

    Return 0 if such a history was found for every chosen safeguard, else 1.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.find_safeguards", description=__doc__)
    parser.add_argument("--only", default="", help="only safeguards whose names hold this text")
    parser.add_argument("--world", help="only safeguards of this kind of world")
    parser.add_argument("--missing", action="store_true", help="only safeguards for which no history was found yet")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"how many histories; default: {SEEDS:,}")
    parser.add_argument("--shrink", action="store_true", help="make failing scenarios smaller, and count their steps")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no safeguard after this time")
    parser.add_argument("-v", "--verbose", action="store_true", help="print the violations and the scenario")
    options = parser.parse_args()
    kept, known = load(), kinds()
    chosen = [
        safeguard
        for safeguard in SAFEGUARDS
        if not safeguard.hidden
        and safeguard.world in known
        and options.only in safeguard.name
        and options.world in (None, safeguard.world)
        and not (options.missing and safeguard.name in kept and _is_done(kept[safeguard.name], options.shrink))
    ]
    began_s = time.monotonic()
    missed = 0
    for safeguard in chosen:
        if time.monotonic() - began_s > options.seconds:
            missed += 1
            continue
        seen = kept[safeguard.name].seed if options.missing and safeguard.name in kept else None
        finding, result = find(safeguard, options.seeds, seen=seen, smaller=options.shrink)
        missed += finding.seeds is None
        sys.stdout.write(json.dumps({**asdict(finding), "scenario": None}) + "\n")
        if options.verbose and result is not None:
            lines = [*map(str, result.scenario.steps), str(result.scenario.options), *result.violations]
            sys.stdout.write("".join(f"  {line}\n" for line in lines))
        sys.stdout.flush()
        names = {one.name for one in SAFEGUARDS if not one.hidden}
        kept = {name: one for name, one in {**load(), safeguard.name: finding}.items() if name in names}
        save(list(kept.values()))
    PAGE.write_text(page(list(load().values()), [one for one in SAFEGUARDS if one.hidden]))
    return 1 if missed else 0


def _is_done(finding: Finding, shrunk: bool) -> bool:
    return finding.seeds is not None and (finding.steps is not None or not shrunk)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:  # the order of a set of texts must not depend on the run
        command = [sys.executable, "-m", "tests.simulation.find_safeguards", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, "PYTHONHASHSEED": HASH_SEED})  # noqa: S606
    sys.exit(main())

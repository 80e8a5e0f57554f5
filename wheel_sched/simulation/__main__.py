"""The simulator's command: run many histories, or replay one. A history is one simulated run, decided by its seed.

python -m wheel_sched.simulation --seeds 10000             run 10,000 histories, an equal share of each kind
python -m wheel_sched.simulation --world retry --seed 42   replay one history with its whole trace
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from importlib.metadata import entry_points

from wheel_sched.simulation.runner import HASH_SEED, Kind, Result, run_scenarios, run_seeds
from wheel_sched.simulation.shrink import shrink

GROUP = "wheel_sched.simulations"


def kinds() -> dict[str, Kind]:
    """All kinds of simulated systems (worlds) by name, except those whose packages are not installed."""
    found: dict[str, Kind] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        with contextlib.suppress(ModuleNotFoundError):
            found[point.name] = point.load()()
    return found


def main(argv: list[str] | None = None) -> int:
    """Run the command. Returns the exit code: 0 if no history violates an invariant, else 1."""
    known = kinds()
    parser = argparse.ArgumentParser(prog="python -m wheel_sched.simulation", description=__doc__)
    parser.add_argument("--world", choices=sorted(known), help="only this kind of world; default: all")
    parser.add_argument("--seeds", type=int, default=1_000, help="how many histories in all; default: 1,000")
    parser.add_argument("--first", type=int, default=0, help="the first seed of each kind; default: 0")
    parser.add_argument("--seed", type=int, help="replay this history and print its trace")
    parser.add_argument(
        "--shrink", action="store_true", help="with --seed: print the smallest scenario that still fails"
    )
    parser.add_argument(
        "--store",
        default="memory",
        metavar="memory|fakeredis|URL",
        help="where the store keeps its items; the last two run the real scripts, and URL is a server that nobody else "
        "uses; default: memory",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(argv)
    chosen = [known[options.world]] if options.world else list(known.values())
    if options.seed is not None:
        return max(_replay(kind, options.seed, options.store, smaller=options.shrink) for kind in chosen)
    each = -(-options.seeds // len(chosen))
    return _run(chosen, range(options.first, options.first + each), options.store, as_json=options.json)


def _run(chosen: list[Kind], seeds: range, store: str, *, as_json: bool) -> int:
    began_s = time.monotonic()
    done, failed = 0, []
    digests: dict[tuple[str, int], str] = {}
    for kind in chosen:
        for result in run_seeds(kind, seeds, store=store):
            done += 1
            digests[kind.name, result.scenario.seed] = result.digest
            if result.violations:
                failed.append((kind, result))
                if not as_json:
                    _print_failure(kind, result)
            _progress(done, len(seeds) * len(chosen), len(failed))
    took_s = time.monotonic() - began_s
    figures = {
        "histories": done,
        "histories_per_minute": round(60 * done / took_s),
        "violations": len(failed),
        "seeds": [f"{kind.name} {result.scenario.seed}" for kind, result in failed][:100],
        "worlds": [kind.name for kind in chosen],
        "digest": hashlib.blake2b(repr(sorted(digests.items())).encode(), digest_size=16).hexdigest(),
    }
    _say(json.dumps(figures) if as_json else f"{done} histories, {len(failed)} with violations, {took_s:.0f} s")
    return 1 if failed else 0


def _replay(kind: Kind, seed: int, store: str, *, smaller: bool) -> int:
    (result,) = run_scenarios(kind, [replace(kind.draw(seed), store=store)], with_trace=True)
    if smaller and result.violations:
        result = shrink(kind, result)
    for step in result.scenario.steps:
        _say(f"  {step}")
    _say(f"  {result.scenario.options}, order {result.scenario.order}")
    for event in result.trace or ():
        _say(event)
    _say(f"{kind.name} {seed}: trace {result.digest}, {result.steps} steps")
    for violation in result.violations:
        _say(violation)
    return 1 if result.violations else 0


def _print_failure(kind: Kind, result: Result) -> None:
    _say(f"{kind.name} {result.scenario.seed}: {result.violations[0]}")
    over = "" if result.scenario.store == "memory" else f" --store {result.scenario.store}"
    replay = f"python -m wheel_sched.simulation --world {kind.name} --seed {result.scenario.seed}{over}"
    _say(f"  commit {_commit()}; {replay}")


def _say(text: object) -> None:
    sys.stdout.write(f"{text}\n")


def _commit() -> str:
    try:
        done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)  # noqa: S607
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def _progress(done: int, count: int, failed: int) -> None:
    if sys.stderr.isatty() and done % 20 == 0:
        sys.stderr.write(f"\r\033[K{done} of {count} histories, {failed} with violations")
        sys.stderr.flush()


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:  # the order of a set of texts must not depend on the run
        os.execve(  # noqa: S606
            sys.executable,
            [sys.executable, "-m", "wheel_sched.simulation", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": HASH_SEED},
        )
    sys.exit(main())

"""Writes pip's constraints that pin each dependency of the extras to its lower bound: `python .ci/lower_bounds.py`."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BOUND = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*>=\s*([0-9][^,;\s]*)")


def main() -> None:
    """Write one line for each dependency."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    found = dict(match.groups() for extra in extras.values() for line in extra if (match := BOUND.match(line)))
    sys.stdout.writelines(f"{name}=={version}\n" for name, version in sorted(found.items()))


if __name__ == "__main__":
    main()

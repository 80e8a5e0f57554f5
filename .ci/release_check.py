"""Checks that a tag may be released: `python .ci/release_check.py --tag v0.1.0 --repository https://host/owner/name`.

The tag, the version in pyproject.toml, the head of CHANGELOG.md and the address of the repository must agree. The
program changes nothing. It writes every mistake at once, each with its fix, and then exits with 1.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def mistakes(root: Path, tag: str, repository: str) -> list[str]:
    """Return what must change before `tag` of the tree in `root` is released from `repository`. Empty if nothing."""
    settings = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
    version = settings["project"]["version"]
    address = settings["tool"]["hatch"]["metadata"]["hooks"]["custom"]["repository"]
    found = []
    if tag != f"v{version}":
        found.append(f"expected the tag v{version}, got {tag}: change the version in pyproject.toml, or the tag")
    if address.rstrip("/") != repository.rstrip("/"):
        found.append(
            f"expected {repository!r} in pyproject.toml, [tool.hatch.metadata.hooks.custom] repository, got {address!r}"
        )
    changelog = (root / "CHANGELOG.md").read_text("utf-8")
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE):
        found.append(
            f"expected a line like '## [{version}] - 2026-01-31' in CHANGELOG.md: write the day of the release"
        )
    return found


def main() -> int:
    """Check the tree that has this file. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tag", required=True)
    parser.add_argument("--repository", required=True)
    parser.add_argument("--tree", type=Path, default=ROOT)
    options = parser.parse_args()
    found = mistakes(options.tree, options.tag, options.repository)
    sys.stderr.writelines(f"error: {mistake}\n" for mistake in found)
    if found:
        sys.stderr.write("nothing was built or published\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

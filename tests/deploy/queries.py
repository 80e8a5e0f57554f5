"""The queries of the Grafana dashboards, as a file of rules that promtool can check: python -m tests.deploy.queries"""

from __future__ import annotations

import json
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "grafana" / "dashboards"


def queries() -> list[tuple[str, str, str]]:
    """The dashboard, the title of the panel and the query of each target, with Grafana's variables replaced."""
    return [
        (
            path.stem,
            panel["title"],
            target["expr"].replace("$__rate_interval", "5m").replace("$job", ".*"),
        )
        for path in sorted(FOLDER.glob("*.json"))
        for panel in json.loads(path.read_text("utf-8"))["panels"]
        for target in panel["targets"]
    ]


def main() -> None:
    """Write a recording rule for each query, as JSON, which is YAML too."""
    rules = [{"record": f"query:{at}", "expr": query} for at, (_, _, query) in enumerate(queries())]
    json.dump({"groups": [{"name": "queries", "rules": rules}]}, sys.stdout)


if __name__ == "__main__":
    main()

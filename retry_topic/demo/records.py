"""The demo's records: the world's airports (the MIT-licensed package `airportsdata`), or a JSON Lines file."""

from __future__ import annotations

import json
from pathlib import Path

from wheel_sched.errors import ConfigError

DEFAULT_COUNT = 2_500


def load_records(path: str | None, count: int | None) -> list[tuple[str, bytes]]:
    """Load the records as pairs of a unique id and JSON.

    Raises:
        ConfigError: the file cannot be read or holds no records, some lines are not JSON objects (the error lists the
            first five), or the package `airportsdata` is missing.
    """
    if path:
        return _from_file(Path(path), count)
    try:
        import airportsdata
    except ImportError as error:
        raise ConfigError(
            "the demo needs its data: run `pip install wheel-sched[demo]`, or give your own records with --input FILE"
        ) from error
    chosen = list(airportsdata.load("ICAO").items())[: count or DEFAULT_COUNT]
    return [(code, json.dumps(airport, ensure_ascii=False).encode()) for code, airport in chosen]


def _from_file(path: Path, count: int | None) -> list[tuple[str, bytes]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}; nothing was started") from error
    records: list[tuple[str, bytes]] = []
    problems: list[str] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            if not isinstance(json.loads(line), dict):
                raise ValueError("not an object")
        except ValueError as error:
            problems.append(f"{path}:{number}: expected one JSON object per line ({error})")
            continue
        records.append((f"{number:06d}", line.encode()))
        if len(records) == count:
            break
    if problems or not records:
        more = [f"and {len(problems) - 5} more lines"] if len(problems) > 5 else []
        raise ConfigError((problems[:5] + more) or [f"{path} holds no records; nothing was started"])
    return records

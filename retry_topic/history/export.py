"""Writes the attempt history of a store to a file, as Parquet or JSON Lines. Changes nothing in the store.

A row may be in the store twice, because a reply was lost. The export writes it once. All rows of a message are in one
shard, so the export looks for repeated rows only within a shard.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retry_topic.history.attempt import VERSION, Attempt, read_attempt
from wheel_sched.errors import ConfigError, Rejected
from wheel_sched.store import DelayStore, History
from wheel_sched.store.maintenance.whole_file import whole_file

_BATCH = 20_000  # rows of one row group


@dataclass(slots=True)
class Exported:
    """The counts of an export.

    Args:
        rows: number of exported rows.
        unreadable: number of entries that are no rows of this version.
        first_ms, last_ms: start of the earliest and the latest attempt, epoch ms; None without rows.
        schema: the version of the rows.
    """

    rows: int = 0
    unreadable: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    schema: int = VERSION


def attempts_in(store: DelayStore, shard: int, seen: Exported | None = None) -> Iterator[Attempt]:
    """The rows of a shard's attempt history, oldest first, each once. Each row raises the counts in `seen`.

    Raises:
        StoreError: the shard cannot be reached.
    """
    counted = seen if seen is not None else Exported()
    known: set[tuple[str, int]] = set()
    last = ""
    while True:
        page = History(store).read(shard, last)
        if not page.entries:
            return
        last = page.last
        for entry in page.entries:
            try:
                row = read_attempt(entry)
            except Rejected:
                counted.unreadable += 1
                continue
            if (row.id, row.attempt) in known:
                continue
            known.add((row.id, row.attempt))
            counted.rows += 1
            started_ms = row.started_ms
            counted.first_ms = started_ms if counted.first_ms is None else min(counted.first_ms, started_ms)
            counted.last_ms = started_ms if counted.last_ms is None else max(counted.last_ms, started_ms)
            yield row


def export(store: DelayStore, file: str | Path, *, replace: bool = False) -> Exported:
    """Write the whole history to a file that only its owner can read. The file appears when it is complete.

    Args:
        store: an open store.
        file: ends with .parquet, .jsonl or .json (JSON Lines).
        replace: whether an existing file may be replaced. Defaults to False.

    Raises:
        FileExistsError: the file exists, and `replace` is False. It was not changed.
        ConfigError: the name ends otherwise, or Parquet needs a package that is absent. Nothing was written.
        StoreError: the store cannot be reached. Nothing was written.
    """
    path = Path(file)
    kinds = {".parquet": _write_parquet, ".jsonl": _write_lines, ".json": _write_lines}
    write = kinds.get(path.suffix)
    if write is None:
        raise ConfigError(f"expected a file ending with .parquet, .jsonl or .json, got: {path}; nothing was written")
    done = Exported()
    with whole_file(path, replace=replace) as part:
        write(part, _batches(store, done))
    return done


def _batches(store: DelayStore, done: Exported) -> Iterator[list[Attempt]]:
    gathered: list[Attempt] = []
    for shard in range(store.shards):
        for row in attempts_in(store, shard, done):
            gathered.append(row)
            if len(gathered) == _BATCH:
                yield gathered
                gathered = []
    if gathered:
        yield gathered


def _write_lines(path: Path, batches: Iterator[list[Attempt]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for rows in batches:
            file.writelines(json.dumps(row._asdict()) + "\n" for row in rows)


def _write_parquet(path: Path, batches: Iterator[list[Attempt]]) -> None:
    try:
        import pyarrow as arrow  # pyright: ignore[reportMissingImports]  # of the extra `spark`
        import pyarrow.parquet as parquet  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ConfigError(
            'Parquet needs pyarrow: pip install "wheel-sched[spark]", or write .jsonl; nothing was written'
        ) from error
    kinds = {"attempt": arrow.int32(), "due_ms": arrow.int64(), "started_ms": arrow.int64(), "shard": arrow.int32()}
    fields: Any = [(name, kinds.get(name, arrow.string())) for name in Attempt._fields]
    schema = arrow.schema(fields, metadata={"wheel_sched.history": str(VERSION)})
    with parquet.ParquetWriter(path, schema) as writer:
        for rows in batches:
            columns = dict(zip(Attempt._fields, zip(*rows, strict=True), strict=True))
            writer.write_table(arrow.table(columns, schema=schema))

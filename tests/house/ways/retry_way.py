"""Traces one retry over Redis Streams, from before `publish` until the second attempt is acknowledged."""

from __future__ import annotations

from pathlib import Path

from retrying import retry
from tracing import Tracer, main


def way(tracer: Tracer, folder: Path) -> list[str]:
    from retry_topic import connect

    with connect(f"embedded:{folder / 'data'}") as connection:
        return retry(tracer, connection, ready_s=1.0)


if __name__ == "__main__":
    main(way)

"""Traces one retry over a real Kafka broker, in transactions, from before `publish` until the second attempt is
settled.

The function `temporary_kafka` of the measured tree starts the broker, and stops it at the end.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from retrying import READY_S, retry
from tracing import Tracer, main, public, unavailable


def way(tracer: Tracer, folder: Path) -> list[str]:
    from retry_topic import connect

    if shutil.which("java") is None:
        unavailable("a Kafka broker needs Java 17, and there is no java on PATH")
    with (
        public("temporary_kafka")() as kafka,
        connect(f"embedded:{folder / 'data'}", broker=public("KafkaBroker")(kafka.bootstrap)) as connection,
    ):
        return retry(tracer, connection, ready_s=READY_S)


if __name__ == "__main__":
    main(way)

"""Traces one timer, from `schedule` of a SystemTimer until its callback has run."""

from __future__ import annotations

import threading
from pathlib import Path

from tracing import Tracer, main, public, wait_for


def way(tracer: Tracer, _: Path) -> list[str]:
    fired = threading.Event()
    with public("SystemTimer")() as timer:
        tracer.begin()
        timer.schedule(0.1, fired.set)
        wait_for(fired, "the timer fired")
        return tracer.end()


if __name__ == "__main__":
    main(way)

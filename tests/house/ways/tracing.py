"""Records the files of the measured tree whose functions are called. The programs in this folder import it first.

The tracer sets its trace function for every thread from the start, because the threads that handle a message are older
than the message. The trace function records nothing until `begin`. Python calls it at the start of each function.

Functions that are called during an import are not recorded. Python also calls the trace function when the body of a
module ends. So the tracer knows when an import is over.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

SETTLE_S = 1.0  # acknowledging, settling and committing happen after the user's code has returned
PATIENCE_S = 120.0
OPTIMIZED = 1  # flag of a function's code (inspect.CO_OPTIMIZED); the code of modules and class bodies does not have it
TREE = os.environ["HOUSE_TREE"] + os.sep
UNAVAILABLE = 3  # exit code of a way that cannot run on this machine


class Tracer:
    """Records the files whose functions are called between `begin` and `end`, on any thread of this process."""

    def __init__(self) -> None:
        self._files: set[str] = set()
        self._on = False
        self._importing = threading.local()
        threading.settrace(self._called)
        sys.settrace(self._called)

    def begin(self) -> None:
        self._on = True

    def end(self) -> list[str]:
        """Stop recording, and return the names of the files whose functions were called, sorted."""
        self._on = False
        return sorted(self._files)

    def _called(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if code.co_name == "<module>":
            self._importing.depth = getattr(self._importing, "depth", 0) + 1
            frame.f_trace_lines = False
            return self._imported
        if (
            self._on
            and code.co_filename.startswith(TREE)
            and code.co_flags & OPTIMIZED
            and code.co_filename not in self._files
            and not getattr(self._importing, "depth", 0)
        ):
            self._files.add(code.co_filename)
        return None

    def _imported(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "return":  # also when an exception ends the import
            self._importing.depth -= 1
        return self._imported


def main(way: Callable[[Tracer, Path], list[str]]) -> None:
    """Run a program of `ways/`, and write a JSON list of the files whose functions it called.

    The first argument of the command line is the folder for the program's data, the second is the file to write.
    """
    tracer = Tracer()
    folder, result = Path(sys.argv[1]), Path(sys.argv[2])
    files = way(tracer, folder)
    sys.settrace(None)
    result.write_text(json.dumps(files), "utf-8")


def public(name: str) -> Any:
    """Import an object from the measured tree, a checkout of any version.

    The object's module differs between versions. `NAMES` lists the modules, and the first that exists is used.
    """
    failures = []
    for place in NAMES[name]:
        module, _, attribute = place.partition(":")
        try:
            return getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            failures.append(f"{place}: {error}")
    raise ImportError(f"add the new place of {name} in {TREE} to NAMES: {'; '.join(failures)}")


# Name of an object -> the modules that have it in some measured version. The first module that exists is used.
NAMES = {
    "SystemTimer": ("wheel_sched.timers:SystemTimer", "wheel_sched.timer:SystemTimer"),
    "EmbeddedServer": ("wheel_sched.store.embedded:EmbeddedServer", "wheel_sched.store:EmbeddedServer"),
    "KafkaBroker": ("retry_topic.brokers.kafka:KafkaBroker",),
    "temporary_kafka": ("wheel_sched.testing.kafka:temporary_kafka", "tests.servers.kafka:temporary_kafka"),
}


def wait_for(event: threading.Event, what: str) -> None:
    """Wait until `event` says that the user's code has run, and then `SETTLE_S` for the work that follows.

    Raises:
        TimeoutError: the code did not run within `PATIENCE_S`.
    """
    if not event.wait(PATIENCE_S):
        raise TimeoutError(f"waited {PATIENCE_S:g} s in vain until {what}")
    time.sleep(SETTLE_S)  # other threads go on after the event, and no public function reports their end


def unavailable(reason: object) -> None:
    """End this process, because its program of `ways/` cannot run on this machine."""
    sys.stderr.write(f"{reason}\n")
    sys.exit(UNAVAILABLE)

"""Progress of a benchmark on stderr: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from typing import TextIO

_WIDTH = 24  # characters of the bar


class Narration:
    """Shows progress over a known number of steps.

    Args:
        steps: how many `step` calls there will be.
        stream: the output. Defaults to stderr.
    """

    def __init__(self, steps: int, stream: TextIO | None = None) -> None:
        self._steps = max(steps, 1)
        self._stream = stream or sys.stderr
        self._bar = self._stream.isatty()
        self._done = 0

    def step(self, what: str) -> None:
        """Show that a step begins now."""
        if self._bar:
            full = _WIDTH * self._done // self._steps
            bar = "#" * full + "." * (_WIDTH - full)
            self._stream.write(f"\r\x1b[K[{bar}] {self._done}/{self._steps} {what}")
        else:
            self._stream.write(f"{what}\n")
        self._stream.flush()
        self._done += 1

    def close(self) -> None:
        """Clear the bar."""
        if self._bar:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

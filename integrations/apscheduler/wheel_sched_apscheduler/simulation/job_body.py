"""The function of every simulated job. A stored job names its function by module and name, so a module defines it."""

from __future__ import annotations

from typing import Protocol


class Runner(Protocol):
    """The method that `run` calls on the present history. A history is one simulated run of all processes."""

    def run_job(self, number: int, revision: int) -> None:
        """Run the body of a job as the scenario says, and record the run."""


class Current:
    """Holds the history (the simulated run) of the present moment. An interpreter simulates one history at a time."""

    history: Runner


def run(number: int, revision: int) -> None:
    """Run a job.

    Args:
        number: the job's number in the history.
        revision: how often the producer had changed the job's arguments.
    """
    Current.history.run_job(number, revision)

"""The function of every simulated job. A stored job names its function by module and name, so a module defines it."""

from __future__ import annotations

from typing import Protocol


class Runner(Protocol):
    """The method of the present history that `run` calls."""

    def run_job(self, number: int, revision: int) -> None:
        """Run the body of a job as the scenario says, and record the run."""


class Current:
    """Holds the history that runs now. An interpreter runs one history at a time."""

    history: Runner


def run(number: int, revision: int) -> None:
    """Run a job.

    Args:
        number: the job's number in the history.
        revision: how often the producer had changed the job's arguments.
    """
    Current.history.run_job(number, revision)

"""The function of every simulated job. A stored job names its function, so the function stands in a module."""

from __future__ import annotations

from typing import Protocol


class Runner(Protocol):
    """The history that runs now."""

    def run_job(self, number: int, revision: int) -> None:
        """Do what the scenario says about a job, and write the run down."""


class Current:
    """Holds the history that runs now. There is one at a time in an interpreter."""

    history: Runner


def run(number: int, revision: int) -> None:
    """Run a job.

    Args:
        number: the job's number in the history.
        revision: how often the producer had changed the job's arguments.
    """
    Current.history.run_job(number, revision)

"""What Spark says of a failure, in plain words: an error raised in a task, or by a file, is buried in its report."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from wheel_sched import errors
from wheel_sched.errors import WheelSchedError

P = ParamSpec("P")
T = TypeVar("T")

_OURS = re.compile(r"wheel_sched\.errors\.(\w+): (.+(?:\n- .+)*)")  # some tell several problems, a line each


class JobFailed(WheelSchedError):
    """Spark gave a job up. What tasks had done before stays done; run again, a job does what is left."""


def plain_errors(job: Callable[P, T]) -> Callable[P, T]:
    """A job whose failures are ours: the error that a task raised, by its own class, or `JobFailed`."""

    @functools.wraps(job)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        try:
            return job(*args, **kwargs)
        except (PySparkException, Py4JJavaError) as error:
            raise plain(error) from error

    return run


def plain(error: Exception) -> WheelSchedError:
    """The error that a report of Spark's is about."""
    text = str(error)
    for name, words in reversed(_OURS.findall(text)):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, WheelSchedError):
            return kind(words)
    return JobFailed(f"Spark gave up: {first_line(error)}; what was done before stays, and a second run does the rest")


def first_line(error: Exception) -> str:
    """The line of a report that says most."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if re.match(r"(Caused by: )?[\w.$]*(Exception|Error): ?\S|\[[A-Z_.]+\]", line)]
    return (told or lines or [type(error).__name__])[-1 if told and "Caused by" in told[-1] else 0][:500]

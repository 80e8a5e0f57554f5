"""Turns Spark's errors into those of this package. Spark hides the error of a task inside a long report."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from wheel_sched import errors
from wheel_sched.errors import WheelSchedError

P = ParamSpec("P")
T = TypeVar("T")

_OURS = re.compile(r"wheel_sched\.errors\.(\w+): (.+(?:\n- .+)*)")  # an error may list several problems, one per line


class JobFailed(WheelSchedError):
    """Spark gave up a job. The results of its finished tasks stay, and a second run does the rest."""


def plain_errors(job: Callable[P, T]) -> Callable[P, T]:
    """Decorate a job. If a task raises an error of this package, the job raises this error too, instead of Spark's.

    If Spark's error contains no error of this package, the job raises `JobFailed`.
    """

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
    """The error of this package that a Spark error contains. If it contains none, a `JobFailed`."""
    text = str(error)
    for name, words in reversed(_OURS.findall(text)):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, WheelSchedError):
            return kind(words)
    return JobFailed(f"Spark gave up: {first_line(error)}; what was done stays; a second run does the rest")


def first_line(error: Exception) -> str:
    """The line of a Spark error that names the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"(Caused by: )?[\w.$]*(Exception|Error): ?\S|\[[A-Z_.]+\]", line)]
    return (named or lines or [type(error).__name__])[-1 if named and "Caused by" in named[-1] else 0][:500]

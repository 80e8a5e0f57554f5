"""The pytest fixture `run_handler`, for every project with wheel-sched and pytest installed.

    def test_a_bank_that_is_away(run_handler):
        assert run_handler(charge, POLICY, [b"order 1"]).attempts == (2,)

The plugin adds only this fixture: no hooks, options, marks or warnings. `-p no:retry_topic` disables it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from retry_topic.testing.report import HandlerRun


@pytest.fixture
def run_handler() -> Callable[..., HandlerRun]:
    """`retry_topic.testing.run`, imported when a test first calls it."""

    def run_handler(*args: Any, **kwargs: Any) -> HandlerRun:
        # here, because most test runs that load this plugin do not need it
        from retry_topic.testing.handler_run import run

        return run(*args, **kwargs)

    return run_handler

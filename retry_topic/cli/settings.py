"""The settings of a command about retry topics."""

from __future__ import annotations

from retry_topic.management.settings import RetrySettings
from wheel_sched.cli.options import Session


def settings_of(session: Session) -> RetrySettings:
    """The settings of a command.

    Raises:
        ConfigError: lists every mistake in flags, environment and file.
    """
    return session.loaded.read(RetrySettings)

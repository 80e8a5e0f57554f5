"""Options for groups whose topics are not named after the group. A setting of the same name replaces a missing
option."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import click

from retry_topic.cli.settings import settings_of
from retry_topic.message.topic_names import GroupTopics
from wheel_sched.cli.options import Session

F = TypeVar("F", bound=Callable[..., Any])
_KINDS = ("retry", "redelivery", "dead")


def topics_options(command: F) -> F:
    """Add --retry-topic, --redelivery-topic and --dead-topic; the command gets them as `topics: GroupTopics`."""

    @wraps(command)
    def with_topics(*args: Any, **kwargs: Any) -> Any:
        session = click.get_current_context().find_object(Session)
        assert session is not None  # noqa: S101  # the root command makes it
        flags = {kind: kwargs.pop(f"{kind}_topic") for kind in _KINDS}
        named = {kind: flag or getattr(settings_of(session), f"{kind}_topic") for kind, flag in flags.items()}
        groups = kwargs.get("groups") or ()
        if any(named.values()) and len({*groups}) > 1:
            raise click.UsageError(
                "Topics can be named for one group at a time; see `wheel-sched config show --origin`."
            )
        return command(*args, topics=GroupTopics(**{kind: name or "" for kind, name in named.items()}), **kwargs)

    wrapped: Any = with_topics
    for kind in reversed(_KINDS):
        text = f"The group's {kind} topic (default: GROUP.{kind})."
        wrapped = click.option(f"--{kind}-topic", metavar="TOPIC", help=text)(wrapped)
    result: F = wrapped
    return result

"""The names of the durability levels. `redis.durability` describes what a write of each level waits for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from wheel_sched.errors import ConfigError, StoreUnavailable

LEVELS = ("memory", "everysec", "fsync", "replicated")
REPEAT = "repeat under the same token or id"


def check_level(level: str, replicas: int, *, server: bool = True) -> None:
    """Refuse an unknown durability level, one that needs a server if there is none, and a wrong number of replicas.

    Raises:
        ConfigError: lists all problems.
    """
    problems = []
    if level not in LEVELS:
        problems.append(f"expected durability to be one of {', '.join(LEVELS)}, got: {level!r}")
    elif not server and level in ("fsync", "replicated"):
        problems.append(
            f"durability {level!r} needs a server, and a store in memory ends with its process: give redis://..., "
            "rediss://..., unix://... or embedded:FOLDER, or leave durability out; nothing was opened"
        )
    if type(replicas) is not int or replicas < 1:
        problems.append(f"expected replicas to be a whole number from 1 up, got: {replicas!r}")
    if problems:
        raise ConfigError(problems)


@contextlib.contextmanager
def opening() -> Iterator[None]:
    """A context manager around the opening of a namespace. It clears `in_doubt` of a `StoreUnavailable`.

    Raises:
        StoreUnavailable: the store was not opened. `in_doubt` is not set, because no message was stored or sent.
    """
    try:
        yield
    except StoreUnavailable as error:
        if not error.in_doubt:
            raise
        why = str(error).replace(REPEAT, "open it again")
        raise StoreUnavailable(
            f"the store was not opened, and no message was stored or sent: its first write is in doubt: {why}"
        ) from error

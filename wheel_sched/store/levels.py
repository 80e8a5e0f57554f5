"""The durability levels by name; what each of them waits for is the server's kind's to say."""

from __future__ import annotations

from wheel_sched.errors import ConfigError

LEVELS = ("memory", "everysec", "fsync", "replicated")


def check_level(level: str, replicas: int, *, server: bool = True) -> None:
    """Refuse a level that there is not, or that a store without a server cannot keep.

    Raises:
        ConfigError: with all that is wrong.
    """
    problems = []
    if level not in LEVELS:
        problems.append(f"expected durability to be one of {', '.join(LEVELS)}, got: {level!r}")
    elif not server and level in ("fsync", "replicated"):
        problems.append(
            f"durability {level!r} needs a server, and a store in memory is gone with its process: give redis://..., "
            "rediss://..., unix://... or embedded:FOLDER, or leave durability out; nothing was opened"
        )
    if type(replicas) is not int or replicas < 1:
        problems.append(f"expected replicas to be a whole number from 1 up, got: {replicas!r}")
    if problems:
        raise ConfigError(problems)

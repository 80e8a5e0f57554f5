"""Settings of the command line: flag, then environment, then `wheel-sched.toml`, then default, and where each is from.

    store = "redis://localhost:6379/0"       # wheel-sched.toml
    WHEEL_SCHED_NAMESPACE=orders             # environment
    wheel-sched --shards 4 ls                # flag

Invariant: all that is wrong is told at once, with its place; nothing is guessed from a wrong value. Pure but for
reading the file. Any thread.
"""

from __future__ import annotations

import os
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from wheel_sched.errors import ConfigError
from wheel_sched.redacting import redacted_text

FILE_NAME = "wheel-sched.toml"
ENV_PREFIX = "WHEEL_SCHED_"
_OTHERS = frozenset({"CONFIG", "PURE", "SERVER"})  # the file, the wheel's core, the embedded server's program
# an integration's own, and what Kubernetes tells each pod about a service of the name wheel-sched
_NOT_OURS = re.compile(r"APS_\w+|SERVICE_(HOST|PORT)(_\w+)?|PORT(_[0-9]+_\w+)?")


@dataclass(frozen=True, slots=True)
class Settings:
    """What every command needs to know.

    Args:
        store: redis://, rediss://, unix:// or embedded:FOLDER. Defaults to "embedded:.wheel-sched".
        namespace: prefix of all keys. Defaults to "wheel".
        shards: of a namespace to be created; of an existing one it must agree. Defaults to None: as it was created, 1
            for a new one.
        durability: memory, everysec, fsync or replicated. Defaults to "everysec".
        replicas: how many replicas confirm under "replicated". Defaults to 1.
        prefix: put before each topic's name to make its stream's key. Defaults to "".
        policies: TOML file of retry policies. Defaults to None: the default policy for every topic.
        kafka: host:port,... of the Kafka cluster whose topics are used, or a file of client properties (`*.properties`)
            that names `bootstrap.servers`. Defaults to None: topics are streams on the store's server.
        group_protocol: of Kafka's consumer groups, classic or consumer (KIP-848). Defaults to None: what the client
            properties say, else classic.
        transactions: whether Kafka's transactions are used; False for clusters without: then what is due goes out at
            least once, with the headers `retry-id` and `retry-attempt`. Defaults to True.
        secrets: file of the secrets that headers are signed with, one a line, the first one signs. Defaults to None:
            headers are not signed.
        retry_topic: where a group's consumers put what failed, for commands that are about one group. Defaults to None:
            the topic named after it.
        redelivery_topic: where due retries come back for that group alone. Defaults to None, likewise.
        dead_topic: where its messages go that are given up. Defaults to None, likewise.
    """

    store: str = field(default="embedded:.wheel-sched", repr=False)  # it may hold a password
    namespace: str = "wheel"
    shards: int | None = None
    durability: str = "everysec"
    replicas: int = 1
    prefix: str = ""
    policies: str | None = None
    kafka: str | None = None
    group_protocol: str | None = None
    transactions: bool = True
    secrets: str | None = None
    retry_topic: str | None = None
    redelivery_topic: str | None = None
    dead_topic: str | None = None


NAMES = tuple(spec.name for spec in fields(Settings))
_NUMBERS = frozenset({"shards", "replicas"})
_SWITCHES = frozenset({"transactions"})
_FILES = frozenset({"policies", "secrets"})
_CHOICES = {
    "durability": ("memory", "everysec", "fsync", "replicated"),
    "group_protocol": ("classic", "consumer"),
}


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings, and for each name where its value is from: "flag", "env NAME", "file PATH" or "default"."""

    settings: Settings
    origins: Mapping[str, str]


def load_settings(
    flags: Mapping[str, Any] | None = None,
    *,
    env: Mapping[str, str] | None = None,
    file: str | os.PathLike[str] | None = None,
) -> Loaded:
    """Settings from all four places.

    Args:
        flags: values given on the command line; None values count as not given. Defaults to none.
        env: the environment. Defaults to the process's.
        file: the settings file; it must exist. Defaults to WHEEL_SCHED_CONFIG, else ./wheel-sched.toml if it exists.

    Raises:
        ConfigError: with everything that is wrong, each with its place.
    """
    env = os.environ if env is None else env
    problems: list[str] = []
    values: dict[str, Any] = {}
    origins = dict.fromkeys(NAMES, "default")
    path = _file_path(file, env)
    for name, value in (_read(path, problems) if path is not None else {}).items():
        values[name] = _checked(name, value, f"file {path}", problems)
        origins[name] = f"file {path}"
    for name in NAMES:
        variable = ENV_PREFIX + name.upper()
        if variable in env:
            values[name] = _checked(name, _from_text(name, env[variable]), f"env {variable}", problems)
            origins[name] = f"env {variable}"
    problems += _unknown_variables(env)
    for name, value in (flags or {}).items():
        if value is not None:
            values[name] = _checked(name, value, f"flag --{name.replace('_', '-')}", problems)
            origins[name] = "flag"
    if problems:
        raise ConfigError(problems)
    return Loaded(Settings(**values), origins)


def _unknown_variables(env: Mapping[str, str]) -> list[str]:
    """What is wrong with names of the environment; values are not quoted, they may be secrets."""
    known = [ENV_PREFIX + name.upper() for name in NAMES]
    problems = []
    for variable in env:
        rest = variable.removeprefix(ENV_PREFIX)
        if rest == variable or variable in known or rest in _OTHERS or _NOT_OURS.fullmatch(rest):
            continue
        close = get_close_matches(variable.upper(), known, 1, 0.85)
        hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
        problems.append(f"env {variable}: unknown setting; {hint}")
    return problems


def _file_path(file: str | os.PathLike[str] | None, env: Mapping[str, str]) -> Path | None:
    named = file or env.get(ENV_PREFIX + "CONFIG")
    if named:
        return Path(named)
    path = Path(FILE_NAME)
    return path if path.is_file() else None


def _read(path: Path, problems: list[str]) -> dict[str, Any]:
    import tomllib  # only where there is a file: every command pays for what is imported above

    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        problems.append(f"expected {path} to be a readable file, got: {error.strerror or error}")
        return {}
    except ValueError as error:  # also of bytes that are no UTF-8
        problems.append(f"expected {path} to be TOML, got: {error}")
        return {}
    except RecursionError:
        problems.append(f"expected {path} to be settings, got: TOML that is nested too deeply")
        return {}
    known = {}
    for name, value in data.items():
        if name in NAMES:
            known[name] = str(path.parent / value) if _is_path(name, value) else value
        else:
            close = get_close_matches(name, NAMES, 1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(NAMES)}"
            problems.append(f"file {path}: unknown setting {name!r}{hint}")
    return known


def _is_path(name: str, value: object) -> bool:
    """Whether a setting of a file names another file, from where the first one is."""
    return isinstance(value, str) and (name in _FILES or (name == "kafka" and value.endswith(".properties")))


def _from_text(name: str, text: str) -> Any:
    if name in _SWITCHES:
        return {"true": True, "false": False}.get(text.lower(), text)
    return int(text) if name in _NUMBERS and re.fullmatch(r"[0-9]{1,9}", text) else text


def _checked(name: str, value: Any, place: str, problems: list[str]) -> Any:
    if name in _NUMBERS:
        if type(value) is not int or not 1 <= value <= 1024:
            problems.append(f"{place}: expected {name} to be a whole number from 1 to 1024, got: {_shown(value)}")
    elif name in _SWITCHES:
        if type(value) is not bool:
            problems.append(f"{place}: expected {name} to be true or false, got: {_shown(value)}")
    elif not isinstance(value, str) or (not value and name != "prefix"):
        problems.append(f"{place}: expected {name} to be a text, got: {_shown(value)}")
    elif name in _CHOICES and value not in _CHOICES[name]:
        *others, last = _CHOICES[name]
        problems.append(f"{place}: expected {name} to be {', '.join(others)} or {last}, got: {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    """A wrong value, short, and without a password that it may hold."""
    return redacted_text(reprlib.repr(value))

"""Settings of the command line. The first of these sources that has a value decides: flag, environment, file, default.

    store = "redis://localhost:6379/0"       # wheel-sched.toml
    WHEEL_SCHED_NAMESPACE=orders             # environment
    wheel-sched --shards 4 stats             # flag

A frozen dataclass declares settings: `setting` makes each of its fields. `Settings` declares those of the core.
A package that extends the command line declares its own in a subclass of `Settings`, so one object has both.

Loading reports all mistakes at once, each with its source, and never uses a wrong value. Any thread may load.
"""

from __future__ import annotations

import os
import re
import reprlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeVar

from wheel_sched.errors import ConfigError
from wheel_sched.redacting import redacted_text

FILE_NAME = "wheel-sched.toml"
ENV_PREFIX = "WHEEL_SCHED_"
# other variables with this prefix: the settings file, the wheel's core, the program of the embedded server
_OTHER_VARIABLES = frozenset({"CONFIG", "PURE", "SERVER"})
# Kubernetes sets these in every pod when a service is called wheel-sched
_KUBERNETES = re.compile(r"SERVICE_(HOST|PORT)(_\w+)?|PORT(_[0-9]+_\w+)?")
_SPEC = "setting"


@dataclass(frozen=True, slots=True)
class SettingSpec:
    """How a setting is checked and shown.

    Args:
        kind: "text", "number" (a whole number from 1 to 1024) or "switch" (true or false). Defaults to "text".
        choices: the allowed texts. Defaults to (): any text.
        file: values with this ending are paths of files; "": all values are. A relative path in the settings file
            starts from the folder of the settings file. Defaults to None: no value is a path.
        may_be_empty: whether "" is allowed. Defaults to False.
        flag_help: help of the global flag `--name`. Defaults to "": there is no such flag.
        metavar: placeholder of the value in that help. Defaults to "".
    """

    kind: Literal["text", "number", "switch"] = "text"
    choices: tuple[str, ...] = ()
    file: str | None = None
    may_be_empty: bool = False
    flag_help: str = ""
    metavar: str = ""


def setting(default: Any, spec: SettingSpec, *, shown: bool = True) -> Any:
    """Declare a setting as a field of a dataclass.

    Args:
        default: the value when no other source has one.
        spec: how the value is checked and shown.
        shown: whether the repr of the dataclass shows the value. Defaults to True.
    """
    return field(default=default, repr=shown, metadata={_SPEC: spec})


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of the core: which store a command works on.

    Args:
        store: redis://, rediss://, unix:// or embedded:FOLDER. Defaults to "embedded:.wheel-sched".
        namespace: prefix of all keys. Defaults to "wheel".
        shards: shard count of a new namespace. It must equal the shard count of an existing namespace. Defaults to
            None: 1 for a new namespace, the stored count for an existing one.
        durability: memory, everysec, fsync or replicated. Defaults to "everysec".
        replicas: how many replicas must confirm each write at durability "replicated". Defaults to 1.
        log_format: how the commands that run until a signal write their log: "text", or "json" for one JSON object a
            line. Defaults to "text".
    """

    store: str = setting(  # it may hold a password
        "embedded:.wheel-sched",
        SettingSpec(flag_help="redis://, rediss://, unix:// or embedded:FOLDER.", metavar="URL"),
        shown=False,
    )
    namespace: str = setting("wheel", SettingSpec(flag_help="Prefix of all keys (default: wheel).", metavar="NAME"))
    shards: int | None = setting(
        None, SettingSpec(kind="number", flag_help="Shard count of a new namespace (default: 1).", metavar="N")
    )
    durability: str = setting(
        "everysec",
        SettingSpec(
            choices=("memory", "everysec", "fsync", "replicated"),
            flag_help="memory, everysec, fsync or replicated.",
            metavar="LEVEL",
        ),
    )
    replicas: int = setting(1, SettingSpec(kind="number"))
    log_format: str = setting(
        "text",
        SettingSpec(
            choices=("text", "json"),
            flag_help="Log of serve, dashboard, exporter: text or json (default: text).",
            metavar="FORM",
        ),
    )


S = TypeVar("S", bound=Settings)


@dataclass(frozen=True, slots=True)
class Loaded:
    """The loaded values, and the source of each.

    Args:
        values: every declared setting.
        origins: for each setting "flag", "env NAME", "file PATH", "argument" or "default".
    """

    values: Mapping[str, Any]
    origins: Mapping[str, str]

    @property
    def settings(self) -> Settings:
        """The settings of the core."""
        return self.read(Settings)

    def read(self, kind: type[S]) -> S:
        """The settings as an object of `kind`, which must be one of the loaded kinds."""
        return kind(**{name: self.values[name] for name in specs((kind,))})


def specs(kinds: Sequence[type[Settings]]) -> dict[str, SettingSpec]:
    """The settings that the dataclasses declare, by name, in order of declaration."""
    return {part.name: part.metadata[_SPEC] for kind in kinds for part in fields(kind)}


def load_settings(
    flags: Mapping[str, Any] | None = None,
    *,
    env: Mapping[str, str] | None = None,
    file: str | os.PathLike[str] | None = None,
    kinds: Sequence[type[Settings]] = (Settings,),
    other_variables: Collection[str] = (),
    refuse_unknown: bool = True,
) -> Loaded:
    """Load settings from the flags, the environment, the settings file and the defaults.

    Args:
        flags: values of the command line; a None value counts as not given. Defaults to none.
        env: the environment. Defaults to that of the process.
        file: the settings file; it must exist. Defaults to WHEEL_SCHED_CONFIG, else ./wheel-sched.toml if it exists.
        kinds: the dataclasses that declare settings. Defaults to the core's.
        other_variables: environment variables, without the prefix WHEEL_SCHED_, that other code reads. Defaults to
            none.
        refuse_unknown: whether an unknown name is a mistake. Defaults to True.

    Raises:
        ConfigError: with every mistake and its source.
    """
    env = os.environ if env is None else env
    declared = specs(kinds)
    problems: list[str] = []
    unknown: list[str] = []
    values: dict[str, Any] = {part.name: part.default for kind in kinds for part in fields(kind)}
    origins = dict.fromkeys(declared, "default")
    path = _file_path(file, env)
    for name, value in (_read(path, problems) if path is not None else {}).items():
        spec = declared.get(name)
        if spec is None:
            unknown.append(f"file {path}: {_unknown_name(name, declared)}")
            continue
        origins[name] = place = f"file {path}"
        values[name] = _checked(name, spec, _from_file(spec, value, path), place, problems)
    for name, spec in declared.items():
        variable = ENV_PREFIX + name.upper()
        if variable in env:
            origins[name] = place = f"env {variable}"
            values[name] = _checked(name, spec, _from_text(spec, env[variable]), place, problems)
    unknown += _unknown_variables(env, declared, {*_OTHER_VARIABLES, *other_variables})
    for name, value in (flags or {}).items():
        if value is not None:
            origins[name] = "flag"
            values[name] = _checked(name, declared[name], value, f"flag --{name.replace('_', '-')}", problems)
    if refuse_unknown:
        problems += unknown
    if problems:
        raise ConfigError(problems)
    return Loaded(values, origins)


def given_settings(values: Mapping[str, Any], *, kinds: Sequence[type[Settings]] = (Settings,)) -> Loaded:
    """Settings that a program gives itself: the environment and the settings file are not read.

    Args:
        values: values by setting; None: the default.
        kinds: the dataclasses that declare settings. Defaults to the core's.

    Raises:
        ConfigError: with every mistake.
    """
    declared = specs(kinds)
    problems = [_unknown_name(name, declared) for name in values if name not in declared]
    found: dict[str, Any] = {part.name: part.default for kind in kinds for part in fields(kind)}
    origins = dict.fromkeys(declared, "default")
    for name, value in values.items():
        if name in declared and value is not None:
            origins[name] = "argument"
            found[name] = _checked(name, declared[name], value, f"argument {name}", problems)
    if problems:
        raise ConfigError(problems)
    return Loaded(found, origins)


def _unknown_name(name: str, declared: Collection[str]) -> str:
    close = get_close_matches(name, declared, 1)
    hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(declared)}"
    return f"unknown setting {name!r}; {hint}"


def _unknown_variables(env: Mapping[str, str], declared: Collection[str], others: Collection[str]) -> list[str]:
    """Mistakes in the names of environment variables. Their values are not shown, because they may be secrets."""
    known = [ENV_PREFIX + name.upper() for name in declared]
    problems = []
    for variable in env:
        rest = variable.removeprefix(ENV_PREFIX)
        if rest == variable or variable in known or rest in others or _KUBERNETES.fullmatch(rest):
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
    import tomllib  # here, because most runs have no file, and every command pays for imports at the top

    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        problems.append(f"expected {path} to be a readable file, got: {error.strerror or error}")
    except ValueError as error:  # also when the bytes are not UTF-8
        problems.append(f"expected {path} to be TOML, got: {error}")
    except RecursionError:
        problems.append(f"expected {path} to be settings, got: TOML that is nested too deeply")
    return {}


def _from_file(spec: SettingSpec, value: Any, path: Path | None) -> Any:
    """A value from a settings file. If it is a relative path, it is made to start from the folder of that file."""
    if path is not None and isinstance(value, str) and spec.file is not None and value.endswith(spec.file):
        return str(path.parent / value)
    return value


def _from_text(spec: SettingSpec, text: str) -> Any:
    if spec.kind == "switch":
        return {"true": True, "false": False}.get(text.lower(), text)
    return int(text) if spec.kind == "number" and re.fullmatch(r"[0-9]{1,9}", text) else text


def _checked(name: str, spec: SettingSpec, value: Any, place: str, problems: list[str]) -> Any:
    if spec.kind == "number":
        if type(value) is not int or not 1 <= value <= 1024:
            problems.append(f"{place}: expected {name} to be a whole number from 1 to 1024, got: {_shown(value)}")
    elif spec.kind == "switch":
        if type(value) is not bool:
            problems.append(f"{place}: expected {name} to be true or false, got: {_shown(value)}")
    elif not isinstance(value, str) or (not value and not spec.may_be_empty):
        problems.append(f"{place}: expected {name} to be a text, got: {_shown(value)}")
    elif spec.choices and value not in spec.choices:
        *others, last = spec.choices
        problems.append(f"{place}: expected {name} to be {', '.join(others)} or {last}, got: {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    """A wrong value as text for an error: shortened, and without passwords."""
    return redacted_text(reprlib.repr(value))

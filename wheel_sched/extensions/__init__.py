"""Extensions: what installed packages add to the command line `wheel-sched` and to the dashboard.

A package names one `Extension` in its entry points, where the core finds it. The core names no extension itself:

    [project.entry-points."wheel_sched.extensions"]
    my-package = "my_package.extension:EXTENSION"

Every start of the program imports that module. So the module may import only the standard library, this module and
`wheel_sched.config`. It names everything else as a "module:attribute" text, which the program imports when needed.
When an extension cannot be loaded, its commands are missing and one line on stderr says why. The commands of the core
still work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple

from wheel_sched.config import Settings
from wheel_sched.extensions.entry_point_files import EntryPoint, entry_points

GROUP = "wheel_sched.extensions"


class Lazy(NamedTuple):
    """A command that is imported when it is called.

    Args:
        target: "module:attribute" of the click command.
        short_help: its line in the list of commands.
        extra: the extra of `wheel-sched` that the command needs. Defaults to "": no extra.
    """

    target: str
    short_help: str
    extra: str = ""


class Stack(NamedTuple):
    """A small project that `wheel-sched init` writes.

    Args:
        files: "package:folder" of its files. A file `name.in` there is written as `name`.
        about: what the project does, in a few words.
        next: the command to run next, in its folder.
    """

    files: str
    about: str
    next: str


class OwnTopic(NamedTuple):
    """A topic under which a package stores things that are not messages.

    Args:
        things: what they are, in the plural, such as "jobs".
        page: their page in the dashboard. A thing's own page has the address `<page>/<id>`.
    """

    things: str
    page: str


@dataclass(frozen=True, slots=True)
class Extension:
    """The additions of one package to the command line and the dashboard.

    Args:
        title: heading of its commands in `wheel-sched --help`.
        commands: its commands by name. Defaults to none.
        examples: lines of `wheel-sched --help`: a command line and its purpose. Defaults to none.
        settings: a subclass of `Settings` that declares its settings. Defaults to None: it declares none.
        variables: more environment variables that the extension reads, without the prefix `WHEEL_SCHED_`. Defaults to
            none.
        dispatchers: names of programs that release due items, for hints such as "start a Celery worker". Defaults to
            none.
        dispatcher_of: "module:function" that names the program to start, called as `function(topics, members)` with the
            topics of waiting items and the live members; returns text such as "`my-program orders`", or "" when it
            does not know these topics. Defaults to "": there is no such function.
        server_checks: checks of `wheel-sched doctor` on a server: "module:function", called as
            `function(target, loaded)` with an `ExaminedTarget` and `Loaded` settings; returns a `Finding`. Defaults to
            none.
        namespace_checks: checks on a namespace that exists, in the form of `server_checks`. Defaults to none.
        stats: parts of `wheel-sched stats`: "module:function", called as `function(store, loaded)`; returns a
            `StatsPart`. Defaults to none.
        metrics: more metrics of a store: "module:function" by topic. Each scrape of a namespace that has or had items
            of the topic calls `function(store)`, which returns `Metric` objects, see
            `wheel_sched.observability.families`. Defaults to none.
        dashboard: what it adds to the dashboard: "module:attribute" of a part, see `wheel_sched.dashboard`. Defaults to
            "": nothing.
        topics: the topics under which it stores things that are not messages. Defaults to none.
        packages: import name of a package it uses -> the extra of `wheel-sched` that installs it. Defaults to none.
        stacks: the projects that `wheel-sched init` can write, by the name of their stack. Defaults to none.
    """

    title: str
    commands: Mapping[str, Lazy] = field(default_factory=dict)
    examples: tuple[tuple[str, str], ...] = ()
    settings: type[Settings] | None = None
    variables: tuple[str, ...] = ()
    dispatchers: tuple[str, ...] = ()
    dispatcher_of: str = ""
    server_checks: tuple[str, ...] = ()
    namespace_checks: tuple[str, ...] = ()
    stats: tuple[str, ...] = ()
    metrics: Mapping[str, str] = field(default_factory=dict)
    dashboard: str = ""
    topics: Mapping[str, OwnTopic] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    stacks: Mapping[str, Stack] = field(default_factory=dict)


class StatsPart(NamedTuple):
    """The additions of an extension to `wheel-sched stats`.

    Args:
        fields: values for the output of --json.
        lines: lines for people, as pairs of a label and a text.
        notes: comments, such as why something could not be counted. Defaults to none.
    """

    fields: Mapping[str, Any] = MappingProxyType({})
    lines: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Installed:
    """The extensions of this environment, in order of their entry points' names.

    Args:
        extensions: the extensions that were loaded.
        problems: one line for each extension that cannot be loaded.
    """

    extensions: tuple[Extension, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def settings(self) -> tuple[type[Settings], ...]:
        """The dataclasses that declare settings: the core's `Settings` and those of the extensions."""
        return (Settings, *(one.settings for one in self.extensions if one.settings is not None))

    @property
    def commands(self) -> dict[str, Lazy]:
        return {name: command for one in self.extensions for name, command in one.commands.items()}

    @property
    def packages(self) -> dict[str, str]:
        return {name: extra for one in self.extensions for name, extra in one.packages.items()}

    @property
    def stacks(self) -> dict[str, Stack]:
        return {name: stack for one in self.extensions for name, stack in one.stacks.items()}

    @property
    def variables(self) -> frozenset[str]:
        return frozenset(name for one in self.extensions for name in one.variables)

    @property
    def dispatchers(self) -> str:
        """The programs that release due items, as text for hints, such as `a Celery worker or a retry service`."""
        words = [words for one in self.extensions for words in one.dispatchers] or ["a dispatcher"]
        return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


@cache
def installed() -> Installed:
    """The extensions of this environment. Only the first call reads the entry points."""
    return load(entry_points(GROUP))


def load(entries: Iterable[EntryPoint]) -> Installed:
    """Load the extensions that entry points name."""
    extensions: list[Extension] = []
    problems: list[str] = []
    for entry in entries:
        try:
            found = resolve(entry.value)
            if not isinstance(found, Extension):
                raise TypeError(f"expected {entry.value} to be an Extension, got: {type(found).__name__}")
        except Exception as error:  # the commands of the core must work, whatever the extension's module raises
            why = " ".join(f"{type(error).__name__}: {error}".split())
            problems.append(f"the extension {entry.name!r} cannot be loaded, its commands are missing: {why}")
        else:
            extensions.append(found)
    return Installed(tuple(extensions), tuple(problems))


def resolve(target: str) -> Any:
    """Import the object that "module:attribute" names."""
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)

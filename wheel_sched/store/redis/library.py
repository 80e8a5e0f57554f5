"""The scripts: one function library whose name contains the hash of its text, and the same scripts for EVALSHA.

The scripts are the `*.lua` files of the rooms, the folders of the store's capabilities (see `wheel_sched.store.rooms`).
The files `prelude*.lua` are the code that scripts share. Two releases with different scripts can use one server and one
namespace at the same time: neither overwrites the functions of the other.

The first line of a script may be `#!lua flags=...`, as in Redis: `no-writes` for readers; `allow-oom` for scripts that
also work on a full server, so that it can be emptied. A script without this line stores new data.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources
from typing import NamedTuple

from wheel_sched.store.rooms import ROOMS

KEY_NAMES = ("meta", "due", "leased", "body", "claim", "held", "why", "dead", "deadbody", "mark", "lapsed")
_PRELUDE = "prelude"
_SHEBANG = "#!lua flags="


class Script(NamedTuple):
    """One script, for FCALL and for EVALSHA."""

    function: str
    source: str
    sha: str


class Library(NamedTuple):
    """All scripts of this release."""

    name: str
    source: str
    scripts: dict[str, Script]


class _Source(NamedTuple):
    """A script file: its text without the first line, and the flags that the first line names."""

    text: str
    flags: str


@cache
def _sources() -> tuple[str, dict[str, _Source]]:
    """The Lua code that scripts share (the files `prelude*.lua`) as one text, and all scripts by name."""
    preludes, scripts = [], {}
    for room in ROOMS:
        folder = resources.files("wheel_sched.store") / room.folder
        files = [file for file in folder.iterdir() if file.name.endswith(".lua")]
        for file in sorted(files, key=lambda file: file.name):
            name, text = file.name.removesuffix(".lua"), file.read_text()
            if name.startswith(_PRELUDE):
                preludes.append(text)
                continue
            if name in scripts:
                raise ValueError(f"two rooms have a script {name}.lua")
            flags = ""
            if text.startswith(_SHEBANG):
                line, _, text = text.partition("\n")
                flags = line.removeprefix(_SHEBANG)
            scripts[name] = _Source(text, flags)
    return "\n".join(preludes), scripts


def script_flags() -> dict[str, str]:
    """The flags of every script by its name."""
    return {name: source.flags for name, source in _sources()[1].items()}


@cache
def library(variant: str = "") -> Library:
    """The library of this release. A `variant` only changes its name, so that tests can use two libraries at once."""
    prelude, sources = _sources()
    content = [prelude, *(part for source in sources.values() for part in source)]
    digest = hashlib.sha256((variant + "\0".join(content)).encode()).hexdigest()[:12]
    parts = [f"#!lua name=wheel_sched_{digest}", prelude]
    scripts = {}
    for name, (text, flags) in sources.items():
        function = f"ws_{digest}_{name}"
        settings = [f"function_name='{function}'", f"callback=function(KEYS, ARGV)\n{text}\nend"]
        if flags:
            settings.append(f"flags={{'{flags}'}}")
        parts.append(f"redis.register_function{{{', '.join(settings)}}}")
        evaluated = f"{prelude}\n{text}"
        sha = hashlib.sha1(evaluated.encode(), usedforsecurity=False).hexdigest()
        scripts[name] = Script(function, evaluated, sha)
    return Library(f"wheel_sched_{digest}", "\n".join(parts), scripts)


@cache
def shard_keys(namespace: str, shard: int) -> tuple[bytes, ...]:
    """The keys of a shard, all with one hash tag, so that a cluster keeps them on one node."""
    return tuple(f"{{{namespace}:{shard}}}:{name}".encode() for name in KEY_NAMES)

"""The scripts: one function library whose name carries its content's hash, and the same scripts for EVALSHA.

Two releases with different scripts so live side by side in one server and one namespace; neither overwrites the
other's functions. Flags: readers are `no-writes`; everything but storing new items is `allow-oom`, so that a full
server can still be drained.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources
from typing import NamedTuple

KEY_NAMES = ("meta", "due", "fly", "body", "claim", "held", "why", "dead", "deadbody", "mark", "tries", "lapsed")

READERS = (
    "window",
    "get",
    "list",
    "scan",
    "bulk",
    "inspect",
    "counts",
    "find",
    "tries",
    "positions",
    "logged",
    "cuts",
    "known",
)
_GROWING = ("schedule", "open", "restore")
SCRIPTS = (
    *READERS,
    *_GROWING,
    "claim",
    "publish",
    "settle",
    "extend",
    "change",
    "pause",
    "sweep",
    "remember",
    "jump",
    "freeze",
    "move",
    "fence",
    "mend",
    "own",
    "resolve",
    "gate",
    "flow",
    "log",
)


class Script(NamedTuple):
    """One script both ways."""

    function: str
    source: str
    sha: str


class Library(NamedTuple):
    """All scripts of this release."""

    name: str
    source: str
    scripts: dict[str, Script]


def _flags(script: str) -> str:
    if script in READERS:
        return "flags={'no-writes'}"
    return "" if script in _GROWING else "flags={'allow-oom'}"


@cache
def library(variant: str = "") -> Library:
    """This release's library. `variant` makes another one of the same behaviour, for tests of two side by side."""
    folder = resources.files("wheel_sched.store") / "lua"
    sources = {name: (folder / f"{name}.lua").read_text() for name in ("prelude", *SCRIPTS)}
    digest = hashlib.sha256((variant + "\0".join(sources.values())).encode()).hexdigest()[:12]
    parts = [f"#!lua name=wheel_sched_{digest}", sources["prelude"]]
    scripts = {}
    for name in SCRIPTS:
        function = f"ws_{digest}_{name}"
        settings = ", ".join(
            part
            for part in (
                f"function_name='{function}'",
                f"callback=function(KEYS, ARGV)\n{sources[name]}\nend",
                _flags(name),
            )
            if part
        )
        parts.append(f"redis.register_function{{{settings}}}")
        source = f"{sources['prelude']}\n{sources[name]}"
        sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
        scripts[name] = Script(function, source, sha)
    return Library(f"wheel_sched_{digest}", "\n".join(parts), scripts)


@cache
def shard_keys(namespace: str, shard: int) -> tuple[bytes, ...]:
    """The keys of a shard, all with one hash tag, so that a cluster keeps them on one node."""
    return tuple(f"{{{namespace}:{shard}}}:{name}".encode() for name in KEY_NAMES)

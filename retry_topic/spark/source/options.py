"""Options of `format("wheelsched")`, checked all at once, before a task is started. Spark hands their names over in
lower case."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from wheel_sched.errors import ConfigError
from wheel_sched.store import DelayStore, open_store
from wheel_sched.store.items import MAX_DUE_MS, STATES, State

_NAMES = frozenset(
    {
        "store",
        "namespace",
        "durability",
        "replicas",
        "states",
        "topic",
        "shards",
        "from_ms",
        "until_ms",
        "records",
        "form",
        "job_id",
        "path",
    }
)
FORMS = ("items", "letters", "damage", "attempts")


@dataclass(frozen=True, slots=True)
class Place:
    """Where the store is.

    Args:
        url: redis://, rediss:// or unix://, reachable by every worker.
        namespace: prefix of its keys. Defaults to "wheel".
        shards: how many it has, as found out by the driver.
        durability: what a write waits for. Defaults to "everysec".
        replicas: how many confirm under "replicated". Defaults to 1.
    """

    url: str
    namespace: str
    shards: int
    durability: str = "everysec"
    replicas: int = 1

    @contextlib.contextmanager
    def opened(self) -> Iterator[DelayStore]:
        """The store, closed at the end of the block.

        Raises:
            StoreError: it cannot be reached, or is another; nothing was changed.
        """
        with open_store(
            self.url,
            namespace=self.namespace,
            shards=self.shards,
            durability=self.durability,
            replicas=self.replicas,
        ) as store:
            yield store


@dataclass(frozen=True, slots=True)
class Scope:
    """What is read.

    Args:
        states: Defaults to all four.
        topic: only this one. Defaults to None: all.
        shards: only these. Defaults to None: all.
        from_ms: least due, lease end or time of death. Defaults to 0.
        until_ms: greatest one. Defaults to the end of time.
    """

    states: tuple[State, ...] = STATES
    topic: str | None = None
    shards: frozenset[int] | None = None
    from_ms: int = 0
    until_ms: int = MAX_DUE_MS


def read_place(options: Mapping[str, str]) -> Place:
    """The store that the options name.

    Raises:
        ConfigError: an option is wrong or unknown, or there is no such namespace; nothing was read or written.
        StoreError: the server cannot be reached.
    """
    problems = [f"there is no option {name!r} (there are: {', '.join(sorted(_NAMES))})" for name in _strange(options)]
    url = options.get("store") or options.get("path") or ""
    if not url.startswith(("redis://", "rediss://", "unix://")):
        problems.append(f"expected option store to be redis://, rediss:// or unix://, got: {url!r}")
    replicas = _whole(options, "replicas", 1, problems)
    if problems:
        raise ConfigError(problems)
    from wheel_sched.cli.opening import created_as

    namespace = options.get("namespace", "wheel")
    found = created_as(url, namespace)
    if not found:
        raise ConfigError(
            f"there is no namespace {namespace!r} in the store: nothing was read or written; check option namespace, "
            "or create it with `wheel-sched publish` or `wheel-sched serve`"
        )
    return Place(url, namespace, int(found["shards"]), options.get("durability", "everysec"), replicas)


def read_scope(options: Mapping[str, str], shards: int) -> Scope:
    """What the options want to see.

    Raises:
        ConfigError: an option is wrong; nothing was read.
    """
    problems: list[str] = []
    states = tuple(part.strip() for part in options.get("states", ",".join(STATES)).split(",") if part.strip())
    known: tuple[State, ...] = tuple(state for state in STATES if state in states)
    if not states or len(known) != len(set(states)):
        problems.append(f"expected option states to be some of {', '.join(STATES)}, got: {options.get('states')!r}")
    chosen: frozenset[int] | None = None
    if "shards" in options:
        parts = options["shards"].split(",")
        if all(part.strip().isdigit() and int(part) < shards for part in parts):
            chosen = frozenset(map(int, parts))
        else:
            problems.append(f"expected option shards to be numbers from 0 to {shards - 1}, got: {options['shards']!r}")
    from_ms = _whole(options, "from_ms", 0, problems)
    until_ms = _whole(options, "until_ms", MAX_DUE_MS, problems)
    if problems:
        raise ConfigError(problems)
    return Scope(known, options.get("topic"), chosen, from_ms, until_ms)


def read_form(options: Mapping[str, str]) -> str:
    """How items are shown: `items` as they lie there, `letters` taken apart, `damage` what an audit looks for, and
    `attempts`, which are none: the history.

    Raises:
        ConfigError: it is another.
    """
    form = options.get("form", "items")
    if form not in FORMS:
        raise ConfigError(f"expected option form to be one of {', '.join(FORMS)}, got: {form!r}; nothing was read")
    return form


def _strange(options: Mapping[str, str]) -> list[str]:
    # a stream's own options travel with ours
    return sorted(name for name in map(str.lower, options) if name not in _NAMES | {"checkpointlocation", "queryname"})


def _whole(options: Mapping[str, str], name: str, default: int, problems: list[str]) -> int:
    text = options.get(name)
    if text is None:
        return default
    if not text.isdigit() or len(text) > 15:
        problems.append(f"expected option {name} to be a whole number from 0 up, got: {text!r}")
        return default
    return int(text)

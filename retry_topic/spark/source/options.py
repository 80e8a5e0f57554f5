"""Options of `format("wheelsched")`, all checked at once, before a task starts.

Spark passes option names in lower case.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from retry_topic.spark.source.pacing import rate_problem
from wheel_sched.errors import ConfigError
from wheel_sched.redacting import redacted
from wheel_sched.store import DelayStore, open_store
from wheel_sched.store.core.items import MAX_DUE_MS, STATES, State

_PLACE = frozenset({"store", "path", "namespace", "durability", "replicas"})
_READING = frozenset({"states", "topic", "shards", "from_ms", "until_ms", "records", "form"})
_WRITING = frozenset({"job_id", "spread_ms", "rate", "memory_limit", "rows", "bytes"})
_NAMES = _PLACE | _READING | _WRITING
_OF_BATCHES = (
    ("job_id", "its checkpoint identifies it"),
    ("rate", "it has no last row; limit the retries with `rate` in the policy file"),
    ("rows", "it has no last row"),
    ("bytes", "it has no last row; memory_limit is checked as rows come"),
)
FORMS = ("items", "letters", "damage", "attempts")


@dataclass(frozen=True, slots=True)
class StorePlace:
    """Where the store is.

    Args:
        url: redis://, rediss:// or unix://; every worker must reach it.
        namespace: prefix of the store's keys.
        shards: number of shards; the driver reads it from the store.
        durability: what a write waits for. Defaults to "everysec".
        replicas: replicas that must confirm a write, with "replicated". Defaults to 1.
    """

    url: str = field(repr=False)  # may hold a password
    namespace: str
    shards: int
    durability: str = "everysec"
    replicas: int = 1

    @contextlib.contextmanager
    def opened(self) -> Iterator[DelayStore]:
        """Open the store; close it at the end of the block.

        Raises:
            StoreError: the store cannot be reached, or was created with other settings; nothing was changed.
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
    """Which items to read.

    Args:
        states: the states. Defaults to all four.
        topic: read only items of this topic. Defaults to None: items of all topics.
        shards: read only these shards. Defaults to None: all shards.
        from_ms: the earliest time (due time, end of the lease, or time of death) of an item. Defaults to 0.
        until_ms: the latest time of an item, in the same sense. Defaults to `MAX_DUE_MS`.
    """

    states: tuple[State, ...] = STATES
    topic: str | None = None
    shards: frozenset[int] | None = None
    from_ms: int = 0
    until_ms: int = MAX_DUE_MS


@dataclass(frozen=True, slots=True)
class StoreWriteOptions:
    """How rows are written.

    Args:
        job_id: id of a batch. Defaults to None: a stream, or a batch that is never run again.
        spread_ms: delay each due time by up to this. Defaults to 0.
        rate: messages per second, from now on. Defaults to None: each row keeps its own due time.
        rows: number of rows. Defaults to None: unknown.
        bytes_needed: bytes that all rows need on the server. Defaults to None: unknown.
        memory_limit: how many bytes the server may use. Defaults to None: the server's own limit.
    """

    job_id: str | None = None
    spread_ms: int = 0
    rate: float | None = None
    rows: int | None = None
    bytes_needed: int | None = None
    memory_limit: int | None = None


def read_place(options: Mapping[str, str]) -> StorePlace:
    """Parse the options that name the store.

    Raises:
        ConfigError: an option is wrong or unknown, or the namespace is missing; nothing was read or written.
        StoreError: the server cannot be reached.
    """
    problems = [f"there is no option {name!r} (there are: {', '.join(sorted(_NAMES))})" for name in _strange(options)]
    url = options.get("store") or options.get("path") or ""
    if not url.startswith(("redis://", "rediss://", "unix://")):
        problems.append(f"expected option store to be redis://, rediss:// or unix://, got: {redacted(url)!r}")
    replicas = _whole(options, "replicas", 1, problems)
    if problems:
        raise ConfigError(problems)
    from wheel_sched.management.opening import created_as

    namespace = options.get("namespace", "wheel")
    found = created_as(url, namespace)
    if not found:
        raise ConfigError(
            f"there is no namespace {namespace!r} in the store: nothing was read or written; check option namespace, "
            "or create it with `wheel-sched publish` or `wheel-sched serve`"
        )
    return StorePlace(url, namespace, int(found["shards"]), options.get("durability", "everysec"), replicas)


def read_scope(options: Mapping[str, str], shards: int) -> Scope:
    """Parse the options of a read.

    Raises:
        ConfigError: an option is wrong; nothing was read.
    """
    problems = [f"expected no option {name} for a read" for name in _given(options, _WRITING)]
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


def read_writing(options: Mapping[str, str], *, streaming: bool) -> StoreWriteOptions:
    """Parse the options of a write.

    Raises:
        ConfigError: an option is wrong, or has no meaning for this write; nothing was written.
    """
    problems = [f"expected no option {name} for a write" for name in _given(options, _READING)]
    if streaming:
        problems += [f"expected no option {name} for a stream: {why}" for name, why in _OF_BATCHES if name in options]
    spread_ms = _whole(options, "spread_ms", 0, problems)
    rows = _whole(options, "rows", 0, problems) if "rows" in options else None
    needed = _whole(options, "bytes", 0, problems) if "bytes" in options else None
    limit = _whole(options, "memory_limit", 0, problems) or None
    rate: float | None = None
    if "rate" in options:
        try:
            rate = float(options["rate"])
        except ValueError:
            problems.append(f"expected option rate to be messages a second, got: {options['rate']!r}")
        if (problem := rate_problem(rate)) is not None:
            problems.append(problem)
        if rows is None and not streaming:
            problems.append(
                "expected option rows beside rate, because no task sees all rows (`**sizes(frame)` gives it)"
            )
        if spread_ms:
            problems.append("expected option spread_ms or option rate, got both")
    if problems:
        raise ConfigError([*problems, "nothing was written"])
    return StoreWriteOptions(options.get("job_id"), spread_ms, rate, rows, needed, limit)


def read_form(options: Mapping[str, str]) -> str:
    """Parse the option `form`: which columns a read returns.

    `items`: items as they are stored. `letters`: messages decoded into payload, key and retry headers. `damage`: what
    is wrong with each item, for the job `audit`. `attempts`: the attempt history.

    Raises:
        ConfigError: the form is unknown; nothing was read.
    """
    form = options.get("form", "items")
    if form not in FORMS:
        raise ConfigError(f"expected option form to be one of {', '.join(FORMS)}, got: {form!r}; nothing was read")
    return form


def _given(options: Mapping[str, str], names: frozenset[str]) -> list[str]:
    return sorted(name for name in map(str.lower, options) if name in names)


def _strange(options: Mapping[str, str]) -> list[str]:
    # Spark passes its own options of a stream too
    return sorted(name for name in map(str.lower, options) if name not in _NAMES | {"checkpointlocation", "queryname"})


def _whole(options: Mapping[str, str], name: str, default: int, problems: list[str]) -> int:
    text = options.get(name)
    if text is None:
        return default
    if not text.isdigit() or len(text) > 15:
        problems.append(f"expected option {name} to be a whole number from 0 up, got: {text!r}")
        return default
    return int(text)

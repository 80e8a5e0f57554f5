"""`wheel-sched doctor`: checks every setting that a guarantee depends on, and says how to fix what it finds.

The checks examine first this machine, then the server, then the namespace. Extensions add checks of the server and of
the namespace. When the server cannot be reached, one finding reports this, and the checks that need the server do not
run.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import wraps

import click

from wheel_sched.cli import doctor_namespace, doctor_server
from wheel_sched.cli.doctor_finding import Check, ExaminedTarget, Finding, problem, warn
from wheel_sched.cli.extensions import installed, resolve
from wheel_sched.cli.failing import FAILED, OK, UNAVAILABLE
from wheel_sched.cli.missing import install_line, package_of
from wheel_sched.cli.opening import created_as, embedded_folder, server_url
from wheel_sched.cli.options import Session, json_option, pass_session
from wheel_sched.cli.output import amount, emit, one_line, paint, say
from wheel_sched.config import Loaded, Settings
from wheel_sched.errors import EmbeddedServerError, StoreUnavailable, WheelSchedError
from wheel_sched.redacting import redacted

_SERVER: Sequence[Check] = (
    doctor_server.reachable,
    doctor_server.server_version,
    doctor_server.eviction,
    doctor_server.persistence,
    doctor_server.failover,
    doctor_server.round_trip,
    doctor_server.clock_skew,
    doctor_server.libraries,
)
_NAMESPACE: Sequence[Check] = (
    doctor_namespace.frozen,
    doctor_namespace.members,
    doctor_namespace.backlog,
    doctor_namespace.leases,
    doctor_namespace.counters,
    doctor_namespace.clock_jumps,
    doctor_namespace.dead_letters,
    doctor_namespace.readable,
    doctor_namespace.places,
)
_MARKS = {"ok": ("ok", "green"), "warn": ("warn", "yellow"), "problem": ("PROBLEM", "red")}


@click.command()
@json_option
@pass_session
def doctor(session: Session, as_json: bool) -> int:
    """Check every setting that a guarantee depends on.

    Exit code 1: a check has found a problem. Exit code 69: the server cannot be reached. The checks write only into a
    scratch namespace.

    \b
    Examples:
      wheel-sched doctor
      wheel-sched --store redis://prod:6379 --durability fsync doctor --json
    """
    settings = session.settings
    findings: list[Finding] = []

    def report(finding: Finding) -> None:
        findings.append(finding)
        if not as_json:
            say_finding(finding)

    for check in (doctor_server.python, doctor_server.packages, doctor_server.core):
        report(check())
    away = False
    try:
        extensions = installed().extensions
        for finding in server_findings(
            settings,
            [_check_of(target, session.loaded) for one in extensions for target in one.server_checks],
            [_check_of(target, session.loaded) for one in extensions for target in one.namespace_checks],
        ):
            report(finding)
    except EmbeddedServerError as error:
        away = True
        cause = error.__cause__
        line = install_line(cause, settings.store) if isinstance(cause, ImportError) else None
        evidence = f"{redacted(settings.store)}: {one_line(str(error))}"
        report(problem("server", evidence, line or "follow its advice, or correct --store"))
    except StoreUnavailable as error:
        away = True
        evidence = f"{redacted(settings.store)}: {error.__cause__ or error}"
        report(problem("server", evidence, "start the server, or correct --store"))
    except WheelSchedError as error:
        report(problem("server", str(error), "correct this, and run doctor again"))
    except ImportError as error:
        line = install_line(error, settings.store)
        if line is None:
            raise
        report(problem("server", f"not checked: the package {package_of(error)} is not installed", line))
    levels = [finding.level for finding in findings]
    if as_json:
        emit({"healthy": "problem" not in levels, "findings": [asdict(finding) for finding in findings]})
    else:
        say()
        problems, warnings = levels.count("problem"), levels.count("warn")
        say(f"{amount(problems, 'problem')}, {amount(warnings, 'warning')}, {levels.count('ok')} checks fine")
    return UNAVAILABLE if away else FAILED if "problem" in levels else OK


def server_findings(
    settings: Settings, server_checks: Sequence[Check] = (), namespace_checks: Sequence[Check] = ()
) -> Iterator[Finding]:
    """Examine the server and the namespace. Yields each finding as soon as its check has run.

    Args:
        settings: the settings that name the server and the namespace.
        server_checks: more checks of the server, which run after those of the core. Defaults to none.
        namespace_checks: more checks of the namespace, which run after those of the core. Defaults to none.

    Raises:
        StoreUnavailable: the server cannot be reached. Earlier findings stay valid.
    """
    with _target(settings) as target:
        for check in (*_SERVER, *server_checks, *((*_NAMESPACE, *namespace_checks) if target.shards else ())):
            yield _examined(check, target)
        if not target.shards:
            yield Finding("namespace", "ok", f"{settings.namespace} does not exist yet")


def say_finding(finding: Finding) -> None:
    """Write a finding for people."""
    words, style = _MARKS[finding.level]
    say(f"{paint(words.ljust(8), style)} {finding.check.ljust(12)} {finding.evidence}")
    if finding.fix:
        say(f"{' ' * 22}{paint('fix:', 'bold')} {finding.fix}")


def _check_of(name: str, loaded: Loaded) -> Check:
    """Import an extension's function, named "module:function". The returned `Check` also passes `loaded` to it."""
    check = resolve(name)

    @wraps(check)
    def bound(target: ExaminedTarget) -> Finding:
        finding: Finding = check(target, loaded)
        return finding

    return bound


def _examined(check: Check, target: ExaminedTarget) -> Finding:
    """Run a check. If it raises a `WheelSchedError`, return a warning, so that the checks after it still run.

    `StoreUnavailable` and errors of all other classes are raised.
    """
    try:
        return check(target)
    except StoreUnavailable:
        raise
    except WheelSchedError as error:
        return warn(check.__name__.replace("_", " "), f"could not be checked: {error}", "")


@contextlib.contextmanager
def _target(settings: Settings) -> Iterator[ExaminedTarget]:
    """Yield the server and the namespace to examine. A scratch folder replaces an embedded folder that is missing."""
    import redis

    from wheel_sched.store.redis.faults import translate

    with contextlib.ExitStack() as stack:
        folder = embedded_folder(settings)
        if folder is not None and not folder.is_dir():
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="wheel-sched-doctor-"))
            url = stack.enter_context(server_url(replace(settings, store=f"embedded:{scratch}"), create=True))
        else:
            url = stack.enter_context(server_url(settings))
        try:
            yield _examine(stack, settings, url)
        except (redis.RedisError, OSError) as error:
            raise translate(error) from error


def _examine(stack: contextlib.ExitStack, settings: Settings, url: str) -> ExaminedTarget:
    import redis

    from wheel_sched.store.core.call import Call
    from wheel_sched.store.core.counts import Count
    from wheel_sched.store.core.delay_store import DelayStore
    from wheel_sched.store.members import Members
    from wheel_sched.store.redis.backend import RedisBackend, client_for
    from wheel_sched.store.redis.durability import SYNCED
    from wheel_sched.store.redis.round_trips import Dialect

    client = stack.enter_context(client_for(url))
    client.ping()
    started = time.perf_counter()
    client.ping()
    ping_ms = (time.perf_counter() - started) * 1000
    backend = RedisBackend(client, Dialect(settings.namespace))
    info = {**backend.info(), "ping_ms": ping_ms}
    config: dict[str, str] = {}
    with contextlib.suppress(redis.RedisError):  # managed servers hide CONFIG
        for name in ("maxmemory-policy", *SYNCED, "min-replicas-to-write", "min-replicas-max-lag"):
            config |= {_text(key): _text(value) for key, value in dict(client.config_get(name)).items()}
    shards = int(created_as(url, settings.namespace).get("shards", 0))
    counts = backend.execute([Call(shard, Count()) for shard in range(shards)])
    for answer in counts:
        if isinstance(answer, Exception):
            raise answer
    now_ms = max((part.now_us for part in counts), default=0) // 1000
    members = Members(DelayStore(backend, shards=shards)).live() if shards else []
    return ExaminedTarget(settings, url, client, info, config, shards, counts, now_ms, members)


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)

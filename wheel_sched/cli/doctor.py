"""`wheel-sched doctor`: checks everything that a promise depends on, each with its evidence and its mend.

The order is that of dependence: this machine, the server, the namespace. What cannot be reached is said once, and
what depends on it is left out.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace

import click

from wheel_sched.cli import doctor_namespace, doctor_server
from wheel_sched.cli.doctor_finding import Check, Finding, Patient, problem, warn
from wheel_sched.cli.extras import install_line, package_of
from wheel_sched.cli.failing import FAILED, OK, UNAVAILABLE
from wheel_sched.cli.opening import created_as, embedded_folder, server_url
from wheel_sched.cli.options import Session, json_option, pass_session
from wheel_sched.cli.output import amount, emit, one_line, paint, say
from wheel_sched.config import Settings
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
    doctor_namespace.hand_over,
)
_NAMESPACE: Sequence[Check] = (
    doctor_namespace.frozen,
    doctor_namespace.backlog,
    doctor_namespace.retries,
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
    """Check everything that a promise depends on. Exit code 1 when there is a problem, 69 without a server.

    Writes nothing but into a scratch namespace of its own.

    \b
    Examples:
      wheel-sched doctor
      wheel-sched --store redis://prod:6379 --durability fsync doctor --json
    """
    settings = session.settings
    findings: list[Finding] = []

    def tell(finding: Finding) -> None:
        findings.append(finding)
        if not as_json:
            say_finding(finding)

    for check in (doctor_server.python, doctor_server.packages, doctor_server.core):
        tell(check())
    away = False
    try:
        for finding in server_findings(settings):
            tell(finding)
    except EmbeddedServerError as error:
        away = True
        cause = error.__cause__
        line = install_line(cause, settings.store) if isinstance(cause, ImportError) else None
        evidence = f"{redacted(settings.store)}: {one_line(str(error))}"
        tell(problem("server", evidence, line or "mend what it says, or correct --store"))
    except StoreUnavailable as error:
        away = True
        tell(
            problem("server", f"{redacted(settings.store)}: {error.__cause__ or error}", "start it, or correct --store")
        )
    except WheelSchedError as error:
        tell(problem("server", str(error), "correct it and run doctor again"))
    except ImportError as error:
        line = install_line(error, settings.store)
        if line is None:
            raise
        tell(problem("server", f"cannot be asked: the package {package_of(error)} is not installed", line))
    levels = [finding.level for finding in findings]
    if as_json:
        emit({"healthy": "problem" not in levels, "findings": [asdict(finding) for finding in findings]})
    else:
        say()
        problems, warnings = levels.count("problem"), levels.count("warn")
        say(f"{amount(problems, 'problem')}, {amount(warnings, 'warning')}, {levels.count('ok')} checks fine")
    return UNAVAILABLE if away else FAILED if "problem" in levels else OK


def server_findings(settings: Settings) -> Iterator[Finding]:
    """Findings about the server and the namespace, one after the other as they are made.

    Raises:
        StoreUnavailable: it cannot be reached; what was found before holds.
    """
    with _patient(settings) as patient:
        for examine in (*_SERVER, *(_NAMESPACE if patient.shards else ())):
            yield _examined(examine, patient)
        if not patient.shards:
            yield Finding("namespace", "ok", f"{settings.namespace} does not exist yet")


def say_finding(finding: Finding) -> None:
    """A finding for people."""
    words, style = _MARKS[finding.level]
    say(f"{paint(words.ljust(8), style)} {finding.check.ljust(12)} {finding.evidence}")
    if finding.mend:
        say(f"{' ' * 22}{paint('mend:', 'bold')} {finding.mend}")


def _examined(check: Check, patient: Patient) -> Finding:
    """A check's finding; one that cannot look says so instead of ending the others."""
    try:
        return check(patient)
    except StoreUnavailable:
        raise
    except WheelSchedError as error:
        return warn(check.__name__.replace("_", " "), f"could not be checked: {error}", "")


@contextlib.contextmanager
def _patient(settings: Settings) -> Iterator[Patient]:
    """The server and the namespace; an embedded folder that does not exist is not made for a look."""
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


def _examine(stack: contextlib.ExitStack, settings: Settings, url: str) -> Patient:
    import redis

    from wheel_sched.store.operations import Call, Count
    from wheel_sched.store.redis.backend import RedisBackend, client_for
    from wheel_sched.store.redis.conversation import Dialect
    from wheel_sched.store.redis.durability import SYNCED

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
    return Patient(settings, url, client, info, config, shards, counts, now_ms)


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)

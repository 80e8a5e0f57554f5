"""Runs the checks: those of the core, then those that the installed extensions add."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import wraps

from wheel_sched.config import Loaded, Settings
from wheel_sched.errors import EmbeddedServerError, StoreUnavailable, WheelSchedError
from wheel_sched.extensions import installed, resolve
from wheel_sched.management.doctor import namespace, server
from wheel_sched.management.doctor.finding import Check, DoctorReport, ExaminedTarget, Finding, problem, warn
from wheel_sched.management.doctor.target import examined_target
from wheel_sched.management.missing import install_line, package_of
from wheel_sched.management.wording import one_line
from wheel_sched.redacting import redacted

_SERVER: Sequence[Check] = (
    server.reachable,
    server.server_version,
    server.eviction,
    server.persistence,
    server.failover,
    server.round_trip,
    server.clock_skew,
    server.libraries,
)
_NAMESPACE: Sequence[Check] = (
    namespace.frozen,
    namespace.members,
    namespace.backlog,
    namespace.leases,
    namespace.counters,
    namespace.clock_jumps,
    namespace.dead_letters,
    namespace.readable,
    namespace.places,
)


def examine(loaded: Loaded, report: DoctorReport) -> Iterator[Finding]:
    """Run all checks. Yields each finding as soon as its check has run.

    Args:
        loaded: the settings.
        report: collects the findings, and whether the server is away.
    """
    for check in (server.python, server.packages, server.core):
        yield report.add(check())
    settings = loaded.settings
    try:
        extensions = installed().extensions
        for finding in server_findings(
            settings,
            [_check_of(target, loaded) for one in extensions for target in one.server_checks],
            [_check_of(target, loaded) for one in extensions for target in one.namespace_checks],
        ):
            yield report.add(finding)
    except EmbeddedServerError as error:
        report.away = True
        cause = error.__cause__
        line = install_line(cause, settings.store) if isinstance(cause, ImportError) else None
        evidence = f"{redacted(settings.store)}: {one_line(str(error))}"
        yield report.add(problem("server", evidence, line or "follow its advice, or correct --store"))
    except StoreUnavailable as error:
        report.away = True
        evidence = f"{redacted(settings.store)}: {error.__cause__ or error}"
        yield report.add(problem("server", evidence, "start the server, or correct --store"))
    except WheelSchedError as error:
        yield report.add(problem("server", str(error), "correct this, and run doctor again"))
    except ImportError as error:
        line = install_line(error, settings.store)
        if line is None:
            raise
        yield report.add(problem("server", f"not checked: the package {package_of(error)} is not installed", line))


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
    with examined_target(settings) as target:
        for check in (*_SERVER, *server_checks, *((*_NAMESPACE, *namespace_checks) if target.shards else ())):
            yield _examined(check, target)
        if not target.shards:
            yield Finding("namespace", "ok", f"{settings.namespace} does not exist yet")


def _check_of(name: str, loaded: Loaded) -> Check:
    """Make a `Check` from an extension's function, which is named "module:function".

    The check calls the function with the target and with the loaded settings.
    """
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
